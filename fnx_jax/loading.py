"""Host side: from a checkpoint's folder to a `Model` on its devices. Whatever fails leaves nothing there.

Read next: opening.py, model.py, families/flash_next/load.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp

from fnx_jax import backend
from fnx_jax.families.flash_next.reading import Arithmetic
from fnx_jax.families.flash_next.sequence import functions
from fnx_jax.lanes.device import Device
from fnx_jax.lanes.drafting import DEPTH_MOST
from fnx_jax.lanes.kept_states import default_budget, divide_budget, kept_sizes
from fnx_jax.lanes.programs import deal_columns
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.state import empty_state, state_shapes
from fnx_jax.mesh import make_mesh
from fnx_jax.model import Model
from fnx_jax.opening import Checkpoint, open_checkpoint
from fnx_jax.vocabulary import end_ids, ids_with_token

PAGE = 64
"""Positions a page holds, rounded up to a multiple of the block."""
CONTEXT = 8192
MAX_ROWS = 512
DRAFT_BLOCKS = 622
"""Blocks of 128 ids that drafts are drawn from: of the published tokenizer, the ids met most often."""


@dataclass(frozen=True)
class _Drafts:
    """As in `load`: whether the head is loaded, drafts of a chain, blocks of ids."""

    head: bool
    depth: int
    blocks: int | None


def load(
    path: str | Path,
    devices: int = 1,
    dtype: str | None = None,
    lanes: int = 4,
    context: int | None = None,
    *,
    draft_head: bool = True,
    draft_depth: int = DEPTH_MOST,
    draft_blocks: int | None = DRAFT_BLOCKS,
    max_rows: int = MAX_ROWS,
    prompt_cache_bytes: int | None = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Model:
    """Reads a checkpoint and places it on a device.

    Args:
      path: an EXL3 pack, a bf16 checkpoint in the published or the Transformers naming, or a prepared checkpoint.
      devices: how many share the work. dtype: None serves as design; "float32" keeps operands and caches float32.
      lanes: requests that run at once. context: positions a lane may hold, min(8192, the model's) by default.
      draft_head: whether the draft head is loaded, if there is one. draft_depth: drafts of a chain at most, 1 to 15.
      draft_blocks: blocks of 128 ids that drafts are drawn from, the first so many; None: all.
      max_rows: rows of one round at most.
      prompt_cache_bytes: memory on all devices for kept states of prompts, beside the lanes'; 0 keeps none, None takes
        as much as the lanes do, 2 GiB at most.
      progress: told file bytes done and in all.
    Raises: CheckpointError naming what is wrong with the files; ValueError naming the argument; BackendError.
      Nothing stays on the device then.
    """
    backend.require()
    _check_arguments(devices, dtype, lanes, max_rows, prompt_cache_bytes)
    drafts = _Drafts(draft_head, draft_depth, draft_blocks)
    _check_drafts(drafts)
    backend.require_in_force()
    checkpoint = open_checkpoint(path)
    try:
        exact = dtype == "float32"
        return _load(checkpoint, devices, exact, lanes, context, drafts, max_rows, prompt_cache_bytes, progress)
    except BaseException:
        checkpoint.close()
        raise


def _check_arguments(
    devices: int, dtype: str | None, lanes: int, max_rows: int, prompt_cache_bytes: int | None
) -> None:
    if devices < 1:
        raise ValueError(f"load: devices={devices}, at least 1 was wanted")
    if dtype not in (None, "float32"):
        raise ValueError(f"load: dtype={dtype!r}, None or 'float32' was wanted")
    if max_rows < backend.ROW_TILE or max_rows % backend.ROW_TILE:
        raise ValueError(f"load: max_rows={max_rows}, a multiple of {backend.ROW_TILE} was wanted")
    if not 1 <= lanes <= max_rows:
        raise ValueError(f"load: lanes={lanes}, from 1 to the {max_rows} rows of a round was wanted")
    if prompt_cache_bytes is not None and prompt_cache_bytes < 0:
        raise ValueError(f"load: prompt_cache_bytes={prompt_cache_bytes}, at least 0 was wanted")


def _check_drafts(drafts: _Drafts) -> None:
    if not 1 <= drafts.depth <= DEPTH_MOST:
        raise ValueError(f"load: draft_depth={drafts.depth}, from 1 to {DEPTH_MOST} was wanted")
    if drafts.blocks is not None and drafts.blocks < 1:
        raise ValueError(f"load: draft_blocks={drafts.blocks}, None or at least 1 was wanted")


def _load(
    checkpoint: Checkpoint,
    devices: int,
    exact: bool,
    lanes: int,
    context: int | None,
    drafts: _Drafts,
    max_rows: int,
    prompt_cache_bytes: int | None,
    progress: Callable[[int, int], None],
) -> Model:
    family = checkpoint.family
    config = replace(family.read_config(checkpoint.config), mtp_layers=checkpoint.mtp_layers if drafts.head else 0)
    limit = _context(context, config.max_context)
    valid, ends = ids_with_token(checkpoint.path, config.vocabulary), end_ids(checkpoint.path)
    shards, mesh = family.deal(config, devices), make_mesh(devices)
    arithmetic = Arithmetic(exact=exact, decode=jax.default_backend() == "cpu")
    ngrams = family.open_ngrams(checkpoint.rows, config, checkpoint.prefix)
    page = math.ceil(PAGE / config.block) * config.block
    context_pages = -(-limit // page)
    cache_dtype = jnp.dtype(jnp.float32 if exact else jnp.bfloat16)
    sizes = kept_sizes(family, state_shapes(family, config, shards, 1, 1, page, cache_dtype), devices)
    budget = default_budget(sizes, lanes, context_pages) if prompt_cache_bytes is None else prompt_cache_bytes
    slots, kept_pages = divide_budget(budget, sizes, context_pages)
    pages = lanes * context_pages + kept_pages
    source = checkpoint.source(arithmetic, _meter(progress, checkpoint.leaf_bytes(config.mtp_layers > 0)))
    params = family.place_params(source, config, shards, mesh, checkpoint.prefix, config.mtp_layers > 0)
    try:
        state = empty_state(family, config, shards, lanes, pages, page, cache_dtype, mesh)
    except BaseException:
        for leaf in jax.tree.leaves(params):
            leaf.delete()
        raise
    row_params = family.cpu_params(params) if arithmetic.decode else params
    valid_V = deal_columns(valid, family.vocabulary_slices(config, shards), mesh)
    steps = DeviceSteps(
        device=Device(family, config, shards, mesh, row_params, ngrams, valid_V),
        state=state,
        lanes=lanes,
        context=limit,
        page=page,
        pages=pages,
        max_rows=max_rows,
        layered=arithmetic.decode,
        heights=tuple(height for height in backend.heights() if height <= max_rows),
        slots=slots,
        sizes=sizes,
        draft_depth=drafts.depth if config.mtp_layers else 0,
        draft_blocks=drafts.blocks,
    )
    return Model(
        config=config,
        params=params,
        functions=functions(config),
        steps=steps,
        fingerprint=backend.fingerprint("float32" if exact else "served"),
        checkpoint_digest=checkpoint.digest,
        end_ids=ends,
    )


def _context(wanted: int | None, most: int) -> int:
    if wanted is None:
        return min(CONTEXT, most)
    if not 1 <= wanted <= most:
        raise ValueError(f"load: context={wanted}, from 1 to the model's {most} was wanted")
    return wanted


def _meter(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done = 0

    def add(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    return add
