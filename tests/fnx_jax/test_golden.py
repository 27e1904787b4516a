"""The row programs reproduce what the reference computes on tiny models: logits, picks, caches, greedy ids, drafts."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fnx_jax.engine.steps import DraftPlan, DraftRow, Draw
from fnx_jax.lanes.layered import layered_programs
from fnx_jax.lanes.state import empty_state
from fnx_jax.lanes.teacher import logits as logits_of
from fnx_jax.lanes.tiles import cut, padded
from pallas_kernels.gated_delta import RowPlaces
from tests.fnx_jax.cases import CASES, Piece, distance, page_table, plan, run_streams
from tests.fnx_jax.lanes.views import assert_same, bits, lane_view

LIMIT = 1e-4


def fresh(steps):
    """An empty state of the same shapes as the steps' own."""
    device = steps.device
    dtype = steps.state.cache.attention[0].key.dtype
    return empty_state(
        device.family, device.config, device.shards, steps.lanes, steps.pages, steps.page, dtype, device.mesh
    )


@pytest.mark.parametrize("name", CASES)
def test_logits_match(name, exact_model, golden_case):
    model, case = exact_model(name), golden_case(name)
    for p in case.prompts:
        worst = distance(model.logits(case[f"p{p}.input_ids"]), case[f"p{p}.fp32.logits"])
        print(f"{name} p{p}: logits off by {worst:.1e} of the largest")
        assert worst < LIMIT


@pytest.mark.parametrize("name", CASES)
def test_greedy_ids_are_exact(name, exact_model, golden_case):
    model, case = exact_model(name), golden_case(name)
    for p in case.prompts:
        wanted = case[f"p{p}.fp32.greedy_ids"].tolist()
        assert model.generate(case[f"p{p}.input_ids"], max_tokens=len(wanted)) == wanted


@pytest.mark.parametrize("name", CASES)
def test_caches_match(name, exact_model, golden_case):
    steps, config, case = exact_model(name).steps, exact_model(name).config, golden_case(name)
    tokens = case["p0.input_ids"]
    exact_model(name).logits(tokens)
    rows, cache = len(tokens), steps.state.cache
    for layer, kind in enumerate(config.layer_kinds):
        plane = config.index_in_kind(layer)
        if kind == "attention":
            pages = cache.attention[plane]
            for ours, key in ((pages.key, "k"), (pages.value, "v"), (pages.raw, "index_k")):
                flat = np.asarray(ours).reshape(-1, *ours.shape[2:])[:rows]
                assert distance(flat, case[f"p0.fp32.cache.{key}.{layer}"]) < LIMIT
            continue
        state = cache.delta[plane]
        assert distance(np.asarray(state.committed[0]), case[f"p0.fp32.cache.gdn_state.{layer}"]) < LIMIT
        wanted = case[f"p0.fp32.cache.gdn_conv.{layer}"]
        assert distance(newest(state.ring, rows, len(wanted), config.delta_channels), wanted) < LIMIT
        if layer in config.ngram_layers:
            ring = cache.ngram[config.ngram_layers.index(layer)]
            wanted = case[f"p0.fp32.cache.ple_conv.{layer}"]
            assert distance(newest(ring, rows, len(wanted), ring.shape[-1]), wanted) < LIMIT


def newest(ring, rows, count, channels):
    """The last `count` rows of lane 0's ring, oldest first, zeros before the start."""
    positions = np.arange(rows - count, rows)
    values = np.asarray(ring[0])[positions % ring.shape[1], :channels]
    return np.where(positions[:, None] >= 0, values, 0)


@pytest.mark.parametrize("name", CASES)
def test_picks_match(name, exact_model, golden_case):
    model, case = exact_model(name), golden_case(name)
    steps, config, tokens = model.steps, model.config, case["p0.input_ids"]
    programs, lanes = layered_programs(config, steps.device.shards, steps.device.mesh, steps.page), fresh(steps)
    picks = [[] for _ in config.layer_kinds]
    for start in range(0, len(tokens), 16):
        piece = plan(steps, [Piece(0, tokens, start, min(start + 16, len(tokens)))])
        (tile,) = cut(piece)
        lanes, _ = programs.run_rows(
            steps.device.params,
            lanes,
            tile_rows(steps, piece, tile),
            piece.pages_LP,
            lambda layer, mixed, live=tile.live: picks[layer].append(np.asarray(mixed.picks.expert_BA)[:live]),
        )
    for layer, found in enumerate(picks):
        wanted = np.sort(case[f"p0.fp32.router_ids.{layer}"], axis=-1)
        assert np.array_equal(np.concatenate(found), wanted)


@pytest.mark.parametrize("name", ["base"])
def test_layer_by_layer_equals_the_one_program(name, exact_model, golden_case):
    model, tokens = exact_model(name), golden_case(name)["p0.input_ids"]
    steps, whole = model.steps, model.logits(tokens)
    assert steps.layered
    layered = lane_view(steps, 0, len(tokens), np.arange(steps.pages).reshape(steps.lanes, -1))
    one = replace(steps, layered=False, state=fresh(steps))
    assert np.array_equal(logits_of(one, tokens), whole)
    assert_same(lane_view(one, 0, len(tokens), np.arange(steps.pages).reshape(steps.lanes, -1)), layered)


def tile_rows(steps, planned, tile):
    """One tile as the programs take it."""
    from fnx_jax.families.rows import Rows

    return Rows(
        token_B=padded(planned.token_B, tile),
        places=RowPlaces(
            lane_B=padded(planned.lane_B, tile),
            position_B=padded(planned.position_B, tile),
            live_B=np.arange(16) < tile.live,
            speculative_B=padded(planned.speculative_B, tile),
        ),
        ngram_BLE=padded(steps.device.ngrams.embeddings(planned.token_B, planned.history_BN), tile),
    )


class Drafter:
    """The draft head of lane 0, over the pages that the row programs left, driven pair by pair."""

    def __init__(self, steps):
        self.steps, self.family, self.config = steps, steps.device.family, steps.device.config
        self.layers, self.params = steps.programs.rows.__self__, steps.device.params

    def pairs(self, streams, tokens, start):
        """Runs pairs (streams, next token) from position `start`; returns logits and the head's streams."""
        logits, out = [], []
        for first in range(0, len(tokens), 16):
            live = min(16, len(tokens) - first)
            pad = [(0, 16 - live)]
            places = RowPlaces(
                lane_B=np.zeros(16, np.int32),
                position_B=np.pad(np.arange(start + first, start + first + live, dtype=np.int32), pad),
                live_B=np.arange(16) < live,
                speculative_B=np.zeros(16, bool),
            )
            token = np.pad(np.asarray(tokens[first : first + live], np.int32), pad)
            given = jax.device_put(np.pad(streams[first : first + live], [*pad, (0, 0)]))
            x = self.layer(given, jax.device_put(token), places)
            slices = self.steps.programs.logits(self.family.with_draft_mixer(self.params), x)
            logits.append(np.asarray(self.steps.programs.whole(slices))[:live])
            out.append(np.asarray(x)[:live])
        return np.concatenate(logits), np.concatenate(out)

    def layer(self, streams, token, places):
        """The whole draft layer over some pairs, whose keys and values stay in the pages."""
        cache = self.steps.state.cache
        plane = self.family.draft_plane(cache, self.config)
        plane, x = self.layers.draft_rows(self.params, plane, streams, token, places, page_table(self.steps))
        cache = self.family.with_draft_plane(cache, self.config, plane)
        self.steps.state = replace(self.steps.state, cache=cache)
        return x

    def chain(self, logits, streams, start, count):
        """The logits of `count` greedy drafts, each from the head's own streams."""
        seen = []
        for position in range(start, start + count):
            seen.append(logits[-1])
            logits, streams = self.pairs(streams[-1:], [int(logits[-1].argmax())], position)
        return np.stack(seen)


def drafted(steps, position, token, depth):
    """The tokens and chances of a greedy chain of lane 0."""
    row = DraftRow(0, position, token, Draw(row=0, position=position + 2, seed=0, temperature=0.0), depth)
    output = steps.draft(DraftPlan((row,), page_table(steps)))
    return output.tokens[0], output.chances[0]


@pytest.mark.parametrize("name", CASES)
def test_draft_head_matches(name, exact_model, golden_case):
    steps, case = exact_model(name).steps, golden_case(name)
    drafter = Drafter(steps)
    for p in case.prompts:
        if f"p{p}.mtp.logits" not in case:
            continue
        tokens, greedy = case[f"p{p}.input_ids"], case[f"p{p}.fp32.greedy_ids"]
        rows, reply = len(tokens), np.concatenate([tokens, greedy])
        streams = run_streams(steps, [Piece(0, tokens, 0, rows)])
        absorbed = held(steps, rows - 1)
        logits, x = drafter.pairs(streams, reply[1 : rows + 1], 0)
        assert held(steps, rows - 1) == absorbed
        assert distance(logits, case[f"p{p}.mtp.logits"]) < LIMIT
        seen = drafter.chain(logits, x, rows, 4)
        assert distance(seen, case[f"p{p}.mtp.draft_logits"]) < LIMIT
        check_chain(drafted(steps, rows - 1, int(greedy[0]), 4), seen, case[f"p{p}.mtp.drafts"])
        # Three tokens of the reply are kept, two of them as drafts: their pairs overwrite those of the chain.
        streams = run_streams(steps, [Piece(0, reply, rows, rows + 3, drafts_from=rows + 1)])
        logits, x = drafter.pairs(streams, greedy[1:4], rows)
        assert distance(logits, case[f"p{p}.mtp.round2_logits"]) < LIMIT
        seen = drafter.chain(logits, x, rows + 3, 4)
        assert distance(seen, case[f"p{p}.mtp.round2_draft_logits"]) < LIMIT
        check_chain(drafted(steps, rows + 2, int(greedy[3]), 4), seen, case[f"p{p}.mtp.round2_drafts"])


def check_chain(found, logits, wanted):
    """The served chain's tokens, and their chances by the logits that it must have had."""
    tokens, chances = found
    assert list(tokens) == wanted.tolist()
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    likely = (weights / weights.sum(axis=1, keepdims=True))[np.arange(len(tokens)), list(tokens)]
    assert np.allclose(chances, likely, rtol=1e-3)


def held(steps, pairs):
    """The bits of lane 0's first pairs in the draft layer's pages."""
    steps.settle()
    plane = steps.device.family.draft_plane(steps.state.cache, steps.device.config)
    pages, block = page_table(steps)[0], steps.device.config.block
    found = {}
    for name in ("key", "value", "raw", "pooled"):
        leaf = np.asarray(getattr(plane, name))
        units = np.arange(pairs // block if name == "pooled" else pairs)
        found[name] = bits(leaf[pages[units // leaf.shape[1]], units % leaf.shape[1]])
    return found
