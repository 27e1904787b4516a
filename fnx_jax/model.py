"""Host side: the library surface. `load` reads a checkpoint; a `Model` scores, generates, and hands out its steps.

Every number comes from the row programs that the server runs, so a script sees the server's bits.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from checkpoints import open_store
from checkpoints.errors import CheckpointError
from checkpoints.inventory import check
from checkpoints.store import Store
from fnx_jax import backend
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import EngineError, Request, SamplingParams
from fnx_jax.families import FAMILIES, Family
from fnx_jax.families.flash_next.load import Arithmetic, parameter_bytes
from fnx_jax.families.flash_next.sequence import Functions, functions
from fnx_jax.lanes import teacher
from fnx_jax.lanes.rounds import Device, DeviceSteps
from fnx_jax.lanes.state import empty_state
from fnx_jax.mesh import make_mesh, place_same
from fnx_jax.vocabulary import end_ids, ids_with_token

PAGE = 64
"""Positions a page holds, rounded up to a multiple of the block."""
CONTEXT = 8192
MAX_ROWS = 512


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded checkpoint on its device.

    config: facts of the architecture. params, functions: the parameter tree and the tile-free layer functions; jit,
    vmap and grad work there, bits are promised only through the methods. steps: the device side of rounds; it serves
    one owner at a time, an engine or these methods. end_ids: ids that end a reply.
    """

    config: Any
    params: Any = field(repr=False)
    functions: Functions = field(repr=False)
    steps: DeviceSteps = field(repr=False)
    fingerprint: backend.Fingerprint
    checkpoint_digest: str
    end_ids: tuple[int, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def logits(self, token_ids: Sequence[int]) -> Float[np.ndarray, "T V"]:
        """Raw float32 logits after every token, teacher-forced. Raises ValueError for a bad id or length."""
        tokens = self._tokens(token_ids)
        with self._lock:
            return teacher.logits(self.steps, tokens)

    def score(
        self, ids_BT: Int[np.ndarray, "B T"], lengths_B: Int[np.ndarray, " B"] | None = None
    ) -> Float[np.ndarray, "B T"]:
        """Log-probability of every token given those before it.

        Args: ids_BT: sequences, padded at the end with anything. lengths_B: real tokens of each, T by default.
        Returns: float32; 0.0 at t = 0 and from a sequence's length on.
        Raises: ValueError where an id, a length or a shape is wrong.
        """
        ids = np.asarray(ids_BT)
        if ids.ndim != 2:
            raise ValueError(f"score: ids of shape {list(ids.shape)}, [B, T] was wanted")
        lengths = np.full(len(ids), ids.shape[1]) if lengths_B is None else np.asarray(lengths_B)
        whole = lengths.dtype.kind in "iu" or not lengths.size
        if lengths.shape != (len(ids),) or not whole or (lengths < 0).any() or (lengths > ids.shape[1]).any():
            raise ValueError(f"score: lengths {lengths.tolist()} for ids of shape {list(ids.shape)}")
        for row, length in zip(ids, lengths, strict=True):
            if length:
                self._tokens(row[:length])
        with self._lock:
            return teacher.score(self.steps, ids.astype(np.int32), lengths)

    def generate(
        self,
        token_ids: Sequence[int],
        max_tokens: int = 16,
        temperature: float = 0.0,
        seed: int = 0,
        draft: bool = True,
    ) -> list[int]:
        """Continues a prompt; the reply's ids, the end id included. `draft` never changes them.

        Raises: ValueError where the prompt or a parameter is wrong; FloatingPointError where a logit is not finite;
          whatever the device raised.
        """
        prompt = tuple(int(token) for token in self._tokens(token_ids))
        sampling = SamplingParams(
            temperature=temperature, seed=seed, max_tokens=max_tokens, eos_token_ids=self.end_ids, draft=draft
        )
        engine = Engine(self.steps)
        try:
            with self._lock:
                (emissions,) = engine.run([Request("generate", prompt, sampling)]).values()
        except EngineError as error:
            raise ValueError(f"generate: {error}") from error
        if engine.failed is not None:
            raise engine.failed
        finish = emissions[-1].finish
        if finish is not None and finish.error:
            raise FloatingPointError(f"generate: {finish.error}")
        return [token for emission in emissions for token in emission.tokens]

    def memory(self) -> dict[str, int]:
        """Bytes on the device: weights, caches of all lanes, and their sum."""
        weights, caches = (sum(a.nbytes for a in jax.tree.leaves(tree)) for tree in (self.params, self.steps.state))
        return {"weights_bytes": weights, "caches_bytes": caches, "total_bytes": weights + caches}

    def _tokens(self, token_ids: Sequence[int] | np.ndarray) -> Int[np.ndarray, " T"]:
        tokens = np.asarray(token_ids)
        if tokens.ndim != 1 or tokens.size == 0 or tokens.dtype.kind not in "iu":
            raise ValueError(f"token ids of shape {list(tokens.shape)} and dtype {tokens.dtype}, ids [T] were wanted")
        if tokens.size > self.steps.context:
            raise ValueError(f"{tokens.size} tokens, but the context holds {self.steps.context}")
        bad = tokens[(tokens < 0) | (tokens >= self.steps.vocabulary)]
        if bad.size:
            raise ValueError(f"token id {int(bad[0])} is outside the vocabulary of {self.steps.vocabulary}")
        return tokens.astype(np.int32)


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
      path: an EXL3 pack, or a bf16 checkpoint in the published or the Transformers naming.
      devices: how many share the work. dtype: None serves as design; "float32" keeps operands and caches float32.
      lanes: requests that run at once. context: positions a lane may hold, min(8192, the model's) by default.
      draft_head: whether the draft head is loaded. max_rows: rows of one round at most.
      progress: told file bytes done and in all.
    Raises: CheckpointError naming what is wrong with the files; ValueError naming the argument; BackendError.
      Nothing stays on the device then.
    """
    backend.require()
    _check_arguments(devices, dtype, lanes, max_rows)
    store = open_store(path)
    try:
        return _load(store, devices, dtype == "float32", lanes, context, draft_head, max_rows, progress)
    except BaseException:
        store.close()
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
    store: Store,
    devices: int,
    exact: bool,
    lanes: int,
    context: int | None,
    draft_head: bool,
    max_rows: int,
    progress: Callable[[int, int], None],
) -> Model:
    config_json, family = _family(store)
    inventory = check(store)
    config = replace(family.read_config(config_json), mtp_layers=inventory.mtp_layers if draft_head else 0)
    limit = _context(context, config.max_context)
    valid, ends = ids_with_token(store.path, config.vocabulary), end_ids(store.path)
    shards, mesh = family.deal(config, devices), make_mesh(devices)
    arithmetic = Arithmetic(exact=exact, decode=jax.default_backend() == "cpu")
    ngrams, digest = family.open_ngrams(store, config), store.digest()
    page = math.ceil(PAGE / config.block) * config.block
    pages = lanes * -(-limit // page)
    cache_dtype = jnp.dtype(jnp.float32 if exact else jnp.bfloat16)
    meter = _meter(progress, parameter_bytes(store, inventory, config.mtp_layers > 0))
    params = family.load_params(store, config, shards, mesh, arithmetic, config.mtp_layers > 0, meter)
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
        checkpoint_digest=digest,
        end_ids=ends,
    )


def _family(store: Store) -> tuple[dict[str, Any], Family]:
    if store.config is None:
        raise CheckpointError(f"{store.path}: config.json is missing")
    model_type = store.config.get("model_type")
    if model_type not in FAMILIES:
        raise CheckpointError(f"{store.path}: unsupported model_type {model_type!r}; known: {', '.join(FAMILIES)}")
    return store.config, FAMILIES[model_type]


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
