"""Host side: the two subjects of the bench behind one face: a prompt of one lane, one row of several lanes.

Each call runs the rows, waits for the logits and returns them. Both look n-grams up on the host.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Float, Int

from experiments.bench.plain import network
from experiments.bench.plain.cache import cache_layout, empty_cache
from experiments.bench.plain.forms import Forms
from fnx_jax import Model
from fnx_jax.engine.steps import RoundPlan
from fnx_jax.families.history import token_history
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.tiles import blocks
from fnx_jax.mesh import SAME, on_ranks, zeros


class Subject(Protocol):
    """Something that runs rows of lanes."""

    def prompt(self, lane: int, token_T: Int[np.ndarray, " T"]) -> jax.Array:
        """Logits [., V] of the last row of a prompt, last in the array's live rows; the lane held anything before."""
        ...

    def decode(self, token_LT: Int[np.ndarray, "L T"], position: int) -> jax.Array:
        """Logits [., V] of the row at `position` of every sequence, sequence l in lane l."""
        ...


@dataclass(frozen=True)
class Served:
    """The row programs as rounds drive them."""

    steps: DeviceSteps

    def prompt(self, lane: int, token_T: Int[np.ndarray, " T"]) -> jax.Array:
        return self._run([(lane, token_T, 0, len(token_T))])

    def decode(self, token_LT: Int[np.ndarray, "L T"], position: int) -> jax.Array:
        return self._run([(lane, tokens, position, position + 1) for lane, tokens in enumerate(token_LT)])

    def _run(self, pieces: list[tuple[int, np.ndarray, int, int]]) -> jax.Array:
        steps = self.steps
        plan = rows_plan(steps, pieces)
        embeddings = steps.device.ngrams.embeddings(plan.token_B, plan.history_BN)
        streams = None
        for block in blocks(plan, steps.heights):
            streams = steps.tile_streams(block, block.tiles[-1], steps.run_block(plan, block, embeddings))
        logits = steps.programs.logits(steps.device.params, streams)
        return jax.block_until_ready(steps.programs.whole(logits))


def rows_plan(steps: DeviceSteps, pieces: list[tuple[int, np.ndarray, int, int]]) -> RoundPlan:
    """A round of rows [start, stop) of sequences in lanes, each lane on pages of its own."""
    per_lane = -(-steps.context // steps.page)
    counts = [stop - start for _, _, start, stop in pieces]
    return RoundPlan(
        token_B=np.concatenate([tokens[start:stop] for _, tokens, start, stop in pieces]),
        lane_B=np.repeat([lane for lane, *_ in pieces], counts).astype(np.int32),
        position_B=np.concatenate([np.arange(start, stop, dtype=np.int32) for _, _, start, stop in pieces]),
        speculative_B=np.zeros(sum(counts), bool),
        history_BN=np.concatenate([_history(steps, tokens, start, stop) for _, tokens, start, stop in pieces]),
        pages_LP=np.arange(steps.lanes * per_lane, dtype=np.int32).reshape(steps.lanes, per_lane),
    )


def _history(steps: DeviceSteps, token_T: np.ndarray, start: int, stop: int) -> np.ndarray:
    first = max(0, start - steps.history)
    return token_history(token_T[first:stop], steps.history)[start - first :]


@dataclass
class Plain:
    """The plain network in one choice of forms, with a cache of its own. params: as the forms want them."""

    model: Model
    params: Any
    forms: Forms
    lanes: int
    reach: int
    cache: Any = field(init=False)
    _decode: Any = field(init=False)
    _prefill: Any = field(init=False)

    def __post_init__(self) -> None:
        mesh, forms = self.model.steps.device.mesh, self.forms
        shapes = jax.eval_shape(lambda: empty_cache(forms.config, forms.shards, self.lanes, self.reach))
        layout = cache_layout(shapes, forms.shards)
        self.cache = jax.tree.map(lambda leaf, spec: zeros(leaf.shape, leaf.dtype, spec, mesh), shapes, layout)
        results = lambda params, cache, *rest: (cache, SAME)  # noqa: E731
        self._decode = on_ranks(partial(network.decode, forms), mesh, results, donate=(1,))
        self._prefill = on_ranks(partial(network.prefill, forms), mesh, results, donate=(1,))

    def prompt(self, lane: int, token_T: Int[np.ndarray, " T"]) -> jax.Array:
        rows = (token_T, np.int32(lane), self._embeddings([token_T], 0, len(token_T)))
        return self._run(self._prefill, rows)

    def decode(self, token_LT: Int[np.ndarray, "L T"], position: int) -> jax.Array:
        here = np.full(len(token_LT), position, np.int32)
        embeddings = self._embeddings(token_LT, position, position + 1)
        return self._run(self._decode, (token_LT[:, position], here, embeddings))

    def _run(self, program: Any, rows: tuple) -> jax.Array:
        self.cache, logits = program(self.params, self.cache, *rows)
        return jax.block_until_ready(logits)

    def _embeddings(self, token_LT: Any, start: int, stop: int) -> Float[np.ndarray, "B l E"]:
        steps = self.model.steps
        history = np.concatenate([_history(steps, tokens, start, stop) for tokens in token_LT])
        return steps.device.ngrams.embeddings(np.concatenate([t[start:stop] for t in token_LT]), history)
