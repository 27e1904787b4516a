"""Host side: from a checkpoint's folder to a `Model` on its devices. Whatever fails leaves nothing there.

Read next: opening.py, model.py, families/flash_next/load.py.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from fnx_jax import backend
from fnx_jax.families.flash_next.reading import Arithmetic
from fnx_jax.families.flash_next.sequence import functions
from fnx_jax.lanes.rounds import Device, DeviceSteps
from fnx_jax.lanes.state import empty_state
from fnx_jax.mesh import make_mesh, place_same
from fnx_jax.model import Model
from fnx_jax.opening import Checkpoint, open_checkpoint
from fnx_jax.vocabulary import end_ids, ids_with_token

PAGE = 64
"""Positions a page holds, rounded up to a multiple of the block."""
CONTEXT = 8192
MAX_ROWS = 512


def load(
    path: str | Path,
    devices: int = 1,
    dtype: str | None = None,
    lanes: int = 4,
    context: int | None = None,
    *,
    draft_head: bool = True,
    max_rows: int = MAX_ROWS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Model:
    """Reads a checkpoint and places it on a device.

    Args:
      path: an EXL3 pack, a bf16 checkpoint in the published or the Transformers naming, or a prepared checkpoint.
      devices: how many share the work. dtype: None serves as design; "float32" keeps operands and caches float32.
      lanes: requests that run at once. context: positions a lane may hold, min(8192, the model's) by default.
      draft_head: whether the draft head is loaded. max_rows: rows of one round at most.
      progress: told file bytes done and in all.
    Raises: CheckpointError naming what is wrong with the files; ValueError naming the argument; BackendError.
      Nothing stays on the device then.
    """
    backend.require()
    _check_arguments(devices, dtype, lanes, max_rows)
    checkpoint = open_checkpoint(path)
    try:
        return _load(checkpoint, devices, dtype == "float32", lanes, context, draft_head, max_rows, progress)
    except BaseException:
        checkpoint.close()
        raise


def _check_arguments(devices: int, dtype: str | None, lanes: int, max_rows: int) -> None:
    if devices < 1:
        raise ValueError(f"load: devices={devices}, at least 1 was wanted")
    if dtype not in (None, "float32"):
        raise ValueError(f"load: dtype={dtype!r}, None or 'float32' was wanted")
    if max_rows < backend.ROW_TILE or max_rows % backend.ROW_TILE:
        raise ValueError(f"load: max_rows={max_rows}, a multiple of {backend.ROW_TILE} was wanted")
    if not 1 <= lanes <= max_rows:
        raise ValueError(f"load: lanes={lanes}, from 1 to the {max_rows} rows of a round was wanted")


def _load(
    checkpoint: Checkpoint,
    devices: int,
    exact: bool,
    lanes: int,
    context: int | None,
    draft_head: bool,
    max_rows: int,
    progress: Callable[[int, int], None],
) -> Model:
    family = checkpoint.family
    config = replace(family.read_config(checkpoint.config), mtp_layers=checkpoint.mtp_layers if draft_head else 0)
    limit = _context(context, config.max_context)
    valid, ends = ids_with_token(checkpoint.path, config.vocabulary), end_ids(checkpoint.path)
    shards, mesh = family.deal(config, devices), make_mesh(devices)
    arithmetic = Arithmetic(exact=exact, decode=jax.default_backend() == "cpu")
    ngrams = family.open_ngrams(checkpoint.rows, config, checkpoint.prefix)
    page = math.ceil(PAGE / config.block) * config.block
    pages = lanes * -(-limit // page)
    cache_dtype = jnp.dtype(jnp.float32 if exact else jnp.bfloat16)
    source = checkpoint.source(arithmetic, _meter(progress, checkpoint.leaf_bytes(config.mtp_layers > 0)))
    params = family.place_params(source, config, shards, mesh, checkpoint.prefix, config.mtp_layers > 0)
    try:
        state = empty_state(family, config, shards, lanes, pages, page, cache_dtype, mesh)
    except BaseException:
        for leaf in jax.tree.leaves(params):
            leaf.delete()
        raise
    steps = DeviceSteps(
        device=Device(family, config, shards, mesh, params, ngrams, place_same(valid, mesh)),
        state=state,
        lanes=lanes,
        context=limit,
        page=page,
        pages=pages,
        max_rows=max_rows,
        layered=arithmetic.decode,
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
