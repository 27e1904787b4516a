"""Host side: the library surface: a `Model` scores, generates, and hands out its steps. loading.py makes one.

Every number comes from the row programs that the server runs, so a script sees the server's bits.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from fnx_jax import backend
from fnx_jax.engine.drafts import policy_for
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import EngineError, Request, SamplingParams
from fnx_jax.families.flash_next.sequence import Functions
from fnx_jax.families.history import token_history
from fnx_jax.lanes import teacher
from fnx_jax.lanes.rounds import DeviceSteps


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded checkpoint on its devices.

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
        engine = Engine(self.steps, drafter=policy_for(self.steps) if draft else None)
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

    def ngram_embeddings(self, token_ids: Sequence[int]) -> Float[np.ndarray, "T layers E"]:
        """What `functions.forward` takes beside the ids: an n-gram embedding a token and n-gram layer. float32."""
        tokens = self._tokens(token_ids)
        return self.steps.device.ngrams.embeddings(tokens, token_history(tokens, self.steps.history))

    @property
    def devices(self) -> tuple[str, ...]:
        """The kind of every device, in the order of ranks, those of other processes too."""
        return tuple(device.device_kind for device in self.steps.device.mesh.devices.flat)

    def memory(self) -> dict[str, int]:
        """Bytes on each device: weights, caches of all lanes, and their sum."""
        trees = self.params, self.steps.state
        weights, caches = (sum(_bytes_on_each(leaf) for leaf in jax.tree.leaves(tree)) for tree in trees)
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


def _bytes_on_each(leaf: jax.Array) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
