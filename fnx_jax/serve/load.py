"""Host side: a model from the disk to the point where it compiles nothing more; the same on every rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fnx_jax.model import Model

log = logging.getLogger(__name__)
Progress = Callable[..., None]
"""Told a phase, and in some phases the bytes done and in all."""


@dataclass(frozen=True)
class ModelSettings:
    """What the command line decides about the model. Fields as the flags of `python -m fnx_jax.serve`.

    devices: that share the work, of all processes. draft_vocabulary: blocks of 128 ids, None for all.
    """

    folder: Path
    devices: int = 1
    lanes: int = 4
    context: int | None = None
    max_rows: int = 512
    dtype: str | None = None
    drafts: bool = True
    mtp_drafts: int = 15
    draft_vocabulary: int | None = 622
    prompt_cache_bytes: int | None = 0
    self_test: bool = True
    compilation_cache_dir: str = ""


def use_compilation_cache(settings: ModelSettings) -> None:
    """Keeps compiled programs for the next start, where the settings name a place."""
    import jax

    if settings.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", settings.compilation_cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def load_warm(settings: ModelSettings, progress: Progress) -> "Model":
    """Loads, compiles and tests a model. Raises as `load` and `self_test`."""
    from fnx_jax.lanes.warmup import warm_up
    from fnx_jax.loading import load
    from fnx_jax.self_test import self_test

    model = load(
        settings.folder,
        devices=settings.devices,
        dtype=settings.dtype,
        lanes=settings.lanes,
        context=settings.context,
        max_rows=settings.max_rows,
        draft_head=settings.drafts,
        draft_depth=settings.mtp_drafts,
        draft_blocks=settings.draft_vocabulary,
        prompt_cache_bytes=settings.prompt_cache_bytes,
        progress=lambda done, total: progress("reading weights", done, total),
    )
    if settings.drafts and not model.steps.draft_depth:
        log.warning("%s has no draft head: served without drafts", settings.folder)
    warm_up(model.steps, lambda what: progress(f"compiling {what}"))
    if settings.self_test:
        progress("self-test")
        self_test(model.steps)
    return model
