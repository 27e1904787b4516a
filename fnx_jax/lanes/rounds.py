"""Host side: runs rounds and drafts on a device and waits for it, which only stepped.py does besides. See engine.steps.

All programs of a round are queued first and their results fetched once, at the end; so are those of its drafts. A row
program that fails or is interrupted leaves every lane empty.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from fnx_jax.engine.steps import DraftOutput, DraftPlan, Held, ReuseError, RoundOutput, RoundPlan
from fnx_jax.families.rows import Rows
from fnx_jax.lanes.device import Device
from fnx_jax.lanes.drafting import Chains
from fnx_jax.lanes.drawing import queue_results, tile_adjustments
from fnx_jax.lanes.kept_states import KeptSizes, KeptStates, unless_lost
from fnx_jax.lanes.owed import Owed
from fnx_jax.lanes.programs import Programs, programs
from fnx_jax.lanes.results import TileResult, collect
from fnx_jax.lanes.state import LaneState, emptied
from fnx_jax.lanes.tiles import (
    Block,
    Tile,
    blocks,
    chain_rows,
    cut_drafts,
    draw_params,
    is_adjusted,
    padded,
)
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.row_tiles import ROW_TILE


@dataclass
class DeviceSteps:
    """The round's device side. Attributes as in engine.steps.Steps; `state` is replaced by every tile.

    layered, draft_blocks: see lanes.programs; heights: see lanes.tiles.blocks. None changes a token.
    sizes: of kept states. kept: their slots, None without any. owed: what the draft head has yet to take in.
    """

    device: Device
    state: LaneState
    lanes: int
    context: int
    page: int
    pages: int
    max_rows: int
    layered: bool = False
    heights: tuple[int, ...] = (ROW_TILE,)
    draft_depth: int = 0
    draft_blocks: int | None = None
    row_tile: int = ROW_TILE
    slots: int = 0
    sizes: KeptSizes = KeptSizes(0, 0)
    owner: object = None
    owed: Owed = field(init=False)
    kept: KeptStates | None = field(init=False)
    state_bytes: int = field(init=False)
    page_bytes: int = field(init=False)
    vocabulary: int = field(init=False)
    history: int = field(init=False)
    programs: Programs = field(init=False)

    def __post_init__(self) -> None:
        self.vocabulary, self.history = self.device.config.vocabulary, self.device.config.ngram_size - 1
        device = self.device
        self.programs = programs(
            device.family,
            device.config,
            device.shards,
            device.mesh,
            self.page,
            self.layered,
            self.draft_blocks,
        )
        self.owed = Owed(self.state.streams_LRN.shape[1])
        self.kept, self.state_bytes, self.page_bytes = None, self.sizes.state, self.sizes.page
        if self.slots:
            parts = (device.family, device.config, device.shards, device.mesh, device.params)
            self.kept = KeptStates(*parts, self.state, self.slots)

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Queues every block's programs, then waits once: for the last of them, and so for all results."""
        ngram_BLE = self.device.ngrams.embeddings(plan.token_B, plan.history_BN)
        results = [result for block in blocks(plan, self.heights) for result in self._queue(plan, block, ngram_BLE)]
        # The last tile may have nothing to fetch, and a round's time must be its own.
        with self._taking_over():
            jax.block_until_ready(self.state)
        return collect(jax.device_get([vars(result) | {"tile": None} for result in results]), results, plan)

    def run_tile(self, plan: RoundPlan, tile: Tile, ngram_BLE: Float[np.ndarray, "B l E"]) -> jax.Array:
        """Runs one tile's rows and returns their last streams, without waiting."""
        return self.run_block(plan, Block(tile.start, tile.live, ROW_TILE, (tile,)), ngram_BLE)

    def run_block(self, plan: RoundPlan, block: Block, ngram_BLE: Float[np.ndarray, "B l E"]) -> jax.Array:
        """Runs one block's rows and returns their last streams, without waiting."""
        places = RowPlaces(
            lane_B=padded(plan.lane_B, block).astype(np.int32),
            position_B=padded(plan.position_B, block).astype(np.int32),
            live_B=np.arange(block.height) < block.live,
            speculative_B=padded(plan.speculative_B, block),
        )
        rows = Rows(
            token_B=padded(plan.token_B, block).astype(np.int32),
            places=places,
            ngram_BLE=padded(ngram_BLE, block),
        )
        owes = self.programs.owes(block.height)
        with self._taking_over():
            if self.owed.begin(plan, block, absorbs=not owes):
                self.settle()
            self.state, streams = self.programs.rows(self.device.params, self.state, rows, self.owed.pages_LP)
        if owes:
            self.owed.add(plan, block)
        return streams

    def settle(self, lanes: Collection[int] | None = None) -> None:
        """The draft head takes in what it is owed of some lanes, None: all, without waiting; not part of any result."""
        params, streams_LRN = self.device.params, self.state.streams_LRN
        with self._risking_plane():
            for rows in self.owed.take(self.heights, lanes):
                self._put_plane(self.programs.absorb(params, self._plane(), streams_LRN, rows, self.owed.pages_LP))

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Queues the chains of every tile of lanes, then waits once. The draft head's memory alone may suffer."""
        for row in plan.rows:
            self.owed.cut(row.lane, row.position + 1)
        self.settle({row.lane for row in plan.rows})
        with self._risking_plane():
            fetched = jax.device_get([self._queue_chains(plan, tile) for tile in cut_drafts(plan)])
        tokens, chances = [], []
        for found in fetched:
            for token_D, chance_D, count in zip(found.token_BD, found.chance_BD, found.count_B, strict=True):
                tokens.append(tuple(token_D[:count].tolist()))
                chances.append(tuple(chance_D[:count].tolist()))
        rows = len(plan.rows)
        return DraftOutput(tuple(tokens[:rows]), tuple(chances[:rows]))

    def _queue_chains(self, plan: DraftPlan, tile: Tile) -> Chains:
        adjusted = [tile_adjustments(self.device, tile)] if any(map(is_adjusted, tile.draws)) else []
        plane, chains = self.programs.draft(
            self.device.params,
            self._plane(),
            self.state.streams_LRN,
            chain_rows(plan, tile),
            plan.pages_LP.astype(np.int32),
            self.device.valid_V,
            draw_params(tile),
            np.float32(plan.confidence),
            *adjusted,
        )
        self._put_plane(plane)
        return chains

    def _plane(self) -> Any:
        return self.device.family.draft_plane(self.state.cache, self.device.config)

    def _put_plane(self, plane: Any) -> None:
        cache = self.device.family.with_draft_plane(self.state.cache, self.device.config, plane)
        self.state = replace(self.state, cache=cache)

    def commit(self, length_L: Int[np.ndarray, " L"]) -> None:
        """Takes accepted rows into the recurrent states, without waiting."""
        with self._taking_over():
            self.state = self.programs.commit(self.device.params, self.state, length_L.astype(np.int32))

    def keep(self, lane: int, length: int, slot: int) -> None:
        """As in engine.steps.Steps."""
        self._settled().keep(self.state, lane, length, slot)

    def restore(self, slot: int, lane: int) -> None:
        """As in engine.steps.Steps. Raises what the device raises where the lanes are lost; they are empty then."""
        kept = self._settled()
        self._exchange(lambda state: kept.restore(state, slot, lane))

    def copy_page(self, source: int, target: int) -> None:
        """As in engine.steps.Steps. Raises as `restore`."""
        kept = self._settled()
        self._exchange(lambda state: kept.copy_page(state, source, target))

    def spill(self, slot: int, pages: tuple[int, ...]) -> Held:
        """As in engine.steps.Steps."""
        try:
            return self._slots().spill(self.state, slot, pages)
        except Exception as error:
            raise ReuseError(f"{type(error).__name__}: {error}") from error

    def refill(self, held: Held, slot: int, pages: tuple[int, ...]) -> None:
        """As in engine.steps.Steps. Raises as `restore`."""
        kept = self._settled()
        try:
            self._exchange(lambda state: kept.refill(state, held, slot, pages))
        except BaseException:
            kept.empty()
            raise

    def _slots(self) -> KeptStates:
        if self.kept is None:
            raise ReuseError("the model was loaded without room for kept states")
        return self.kept

    def _settled(self) -> KeptStates:
        """The slots, once nothing is owed: pages are about to be shared, or to have other users."""
        kept = self._slots()
        try:
            self.settle()
        except Exception as error:
            raise ReuseError(f"{type(error).__name__}: {error}") from error
        return kept

    def _exchange(self, work: Callable[[LaneState], LaneState]) -> None:
        try:
            self.state = unless_lost(work, self.state)
        except ReuseError:
            raise
        except BaseException:
            self._lose_lanes()
            raise

    @contextmanager
    def _taking_over(self) -> Iterator[None]:
        """Around a program that takes over the state's buffers: where it fails, they are gone."""
        try:
            yield
        except BaseException:
            self._lose_lanes()
            raise

    @contextmanager
    def _risking_plane(self) -> Iterator[None]:
        """Around programs that take over the draft head's memory alone: drafts get worse without it, no reply does."""
        try:
            yield
        except BaseException:
            self.owed.clear()
            self._put_plane(emptied(self._plane()))
            raise

    def _lose_lanes(self) -> None:
        """Empties them, pages and all; nobody owns what was in them."""
        self.owed.clear()
        self.state, self.owner = emptied(self.state), None

    def tile_streams(self, block: Block, tile: Tile, streams: jax.Array) -> jax.Array:
        """The rows of one of a block's tiles, out of the block's last streams."""
        if block.height == ROW_TILE:
            return streams
        return self.programs.tile(streams, np.int32(tile.start - block.start))

    def _queue(self, plan: RoundPlan, block: Block, ngram_BLE: np.ndarray) -> Iterator[TileResult]:
        streams = self.run_block(plan, block, ngram_BLE)
        for tile in block.tiles:
            if tile.draws or tile.scores:
                yield queue_results(self.device, self.programs, tile, self.tile_streams(block, tile, streams))
