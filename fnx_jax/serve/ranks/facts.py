"""Host side: what must be the same on every rank before they may run as one."""

import hashlib
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import checkpoints
import fnx_jax
import pallas_kernels
from checkpoints import open_store
from fnx_jax import backend
from fnx_jax.serve.load import ModelSettings
from pallas_kernels.row_tiles import ROW_TILE

_PACKAGES = (fnx_jax, pallas_kernels, checkpoints)
_FILES = ("config.json", "tokenizer.json", "generation_config.json")


def facts(settings: ModelSettings) -> dict[str, str]:
    """Names and values, in the order in which they are compared. Starts no backend. Raises CheckpointError."""
    import jax
    import jaxlib

    from fnx_jax.loading import PAGE

    store = open_store(settings.folder)
    try:
        digest = store.digest()
    finally:
        store.close()
    return {
        "fnx_jax": version("fnx_jax"),
        "source": program_digest(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "flags": " ".join(backend.CPU_FLAGS + backend.GPU_FLAGS + backend.flags_besides(os.environ)),
        "row_tile": str(ROW_TILE),
        "checkpoint_digest": digest,
        **{name: _file_digest(settings, name) for name in _FILES},
        "dtype": settings.dtype or "served",
        "lanes": str(settings.lanes),
        "context": "default" if settings.context is None else str(settings.context),
        "max_rows": str(settings.max_rows),
        "page": str(PAGE),
        "drafts": str(settings.drafts),
        "mtp_drafts": str(settings.mtp_drafts),
        "draft_vocabulary": "all" if settings.draft_vocabulary is None else str(settings.draft_vocabulary),
        "prompt_cache": "default" if settings.prompt_cache_bytes is None else str(settings.prompt_cache_bytes),
        "self_test": str(settings.self_test),
    }


def program_digest() -> str:
    """The `source_digest` of all that serves."""
    return source_digest(Path(package.__path__[0]) for package in _PACKAGES)


def source_digest(folders: Iterable[Path]) -> str:
    """Twelve hex digits of SHA-256 over names and bytes of all Python files; where the folders lie is no part of it."""
    whole = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def _file_digest(settings: ModelSettings, name: str) -> str:
    path = settings.folder / name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "missing"
