"""Host side: where does exactness cost? Each part of a layer, as served and as plain code, at a prompt's rows.

    python -m experiments.bench.parts --rows=256

One device, a synthetic checkpoint, the same weights and rows for both; plain parts take the forms that are fastest at
so many rows (choose.py). Times as in exactness.py. The parts: the recurrent and the attention mixer with their
projections, the n-gram mix, router and experts, the reads and writes of the streams.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

import fnx_jax
from checkpoints.commands import UsageError, run
from experiments.bench.choose import choose, tree_for
from experiments.bench.interleave import Compared, compare
from experiments.bench.plain import network
from experiments.bench.plain.cache import empty_cache
from experiments.bench.plain.experts import moe
from experiments.bench.plain.forms import Forms
from experiments.bench.synthetic import write_checkpoint
from experiments.receipts import make_receipt, note_origin, write_receipt
from fnx_jax.families.flash_next.forward import layer_states
from fnx_jax.families.flash_next.gated_delta import gated_delta_block
from fnx_jax.families.flash_next.moe import experts, route_rows
from fnx_jax.families.flash_next.sequence.residual import write as plain_write
from fnx_jax.families.flash_next.sparse_attention import sparse_attention_block
from fnx_jax.mesh import SAME, on_ranks
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.hyper_connection import read, write
from pallas_kernels.ngram_mix import ngram_mix
from pallas_kernels.sparse_attention import PageTable

LANES, REACH = 16, 512
FLAGS = flags.FlagValues()
flags.DEFINE_integer("rows", 256, "Rows of a prompt, a multiple of 16.", 16, REACH, flag_values=FLAGS)
flags.DEFINE_integer("repeats", 8, "Times A B B A.", 1, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of all rows: streams, a mixer's input, an n-gram embedding."""


class Carried:
    """Calls a program that takes a state over and returns it with a result, again and again. Waits."""

    def __init__(self, function: Callable[..., tuple[Any, Any]], mesh: Any, state: Any, *rest: Any):
        self._program = on_ranks(function, mesh, lambda state, *rest: (state, SAME), donate=(0,))
        self._state, self._rest = jax.tree.map(lambda a: a.copy(), state), rest
        self()  # compiles; the next call compiles for the state as it is handed back

    def __call__(self) -> None:
        self._state, out = self._program(self._state, *self._rest)
        jax.block_until_ready((self._state, out))


def parts(model: fnx_jax.Model, rows: int, repeats: int) -> Iterator[tuple[str, Compared]]:
    """Measures part by part."""
    device = model.steps.device
    trees = [device.params, model.params]
    forms = choose(model, trees, rows, True, False)
    inputs = _inputs(model, rows)
    served, plain = served_parts(model, inputs), plain_parts(model, tree_for(forms, trees), forms, inputs)
    for name in served:
        yield name, compare(served[name], plain[name], repeats)


def _inputs(model: fnx_jax.Model, rows: int) -> Inputs:
    config, rng = model.config, np.random.default_rng(0)
    streams = rng.standard_normal((rows, config.streams * config.hidden), np.float32)
    ngram = rng.standard_normal((rows, model.params.layers[config.ngram_layers[0]].ngram.key.shape[1]), np.float32)
    return streams, rng.standard_normal((rows, config.hidden), np.float32), ngram


def served_parts(model: fnx_jax.Model, inputs: Inputs) -> dict[str, Carried]:
    """The parts of the row programs, in lane 0 from its first position on."""
    steps, config, device = model.steps, model.config, model.steps.device
    shards, n, eps = device.shards, config.streams, config.norm_eps
    streams, x, embedding = inputs
    rows = len(x)
    places = RowPlaces(
        lane_B=jnp.zeros(rows, np.int32),
        position_B=jnp.arange(rows, dtype=np.int32),
        live_B=jnp.ones(rows, bool),
        speculative_B=jnp.zeros(rows, bool),
    )
    pages = jnp.arange(steps.context // steps.page, dtype=np.int32)
    table = PageTable(pages_BP=jnp.broadcast_to(pages, (rows, len(pages))), page=steps.page)
    states, layers = layer_states(steps.state.cache, config), device.params.layers
    kinds = {kind: config.layer_kinds.index(kind) for kind in ("delta", "attention")}
    place = config.ngram_layers[0]
    make = lambda function, state, *rest: Carried(function, device.mesh, state, *rest)  # noqa: E731

    def hyper(state, x, weights):
        mixed, gate = read(state, weights, n, eps)
        return write(state, mixed + x, gate), mixed

    return {
        "recurrent mixer": make(
            lambda state, x, weights, folded: gated_delta_block(x, weights, config, shards, state, folded, places),
            states[kinds["delta"]].mixer,
            x,
            layers[kinds["delta"]].mixer,
            steps.state.cache.folded,
        ),
        "attention mixer": make(
            lambda state, x, weights: sparse_attention_block(x, weights, config, shards, state, table, places),
            states[kinds["attention"]].mixer,
            x,
            layers[kinds["attention"]].mixer,
        ),
        "n-gram mix": make(
            lambda ring, streams, embedding, weights: ngram_mix(
                streams, embedding, ring, places, weights, n, config.ngram_size, eps
            ),
            states[place].ngram,
            streams,
            embedding,
            layers[place].ngram,
        ),
        "router and experts": make(
            lambda state, x, w: (
                state,
                experts(x, route_rows(x, w, config, places.live_B), w.lines, w.line_map, w.shared, config, shards),
            ),
            jnp.zeros((), np.int32),
            x,
            layers[0].moe,
        ),
        "streams, read and written": make(hyper, jnp.asarray(streams), x, layers[0].mixer_hyper),
    }


def plain_parts(model: fnx_jax.Model, params: Any, forms: Forms, inputs: Inputs) -> dict[str, Carried]:
    """The same of the plain network."""
    config, mesh = model.config, model.steps.device.mesh
    streams, x, embedding = inputs
    cache, lane = empty_cache(config, forms.shards, LANES, REACH), jnp.zeros((), np.int32)
    kinds = {kind: config.layer_kinds.index(kind) for kind in ("delta", "attention")}
    place = config.ngram_layers[0]

    def hyper(state, x, weights):
        mixed, gate = network.read(state, weights, forms)
        return plain_write(state, mixed + x, gate), mixed

    return {
        "recurrent mixer": Carried(
            lambda state, x, weights: network.recurrent_mixer(x, weights, forms, state, lane),
            mesh,
            cache.delta[0],
            x,
            params.layers[kinds["delta"]].mixer,
        ),
        "attention mixer": Carried(
            lambda state, x, weights: network.attention_mixer(x, weights, forms, state, None, lane),
            mesh,
            cache.attention[0],
            x,
            params.layers[kinds["attention"]].mixer,
        ),
        "n-gram mix": Carried(
            lambda tail, streams, rows, weights: network.mix_ngrams(streams, rows, weights, forms, tail, lane),
            mesh,
            cache.ngram[0],
            streams,
            embedding,
            params.layers[place].ngram,
        ),
        "router and experts": Carried(
            lambda state, x, weights: (state, moe(x, weights, forms)), mesh, lane, x, params.layers[0].moe
        ),
        "streams, read and written": Carried(hyper, mesh, jnp.asarray(streams), x, params.layers[0].mixer_hyper),
    }


def main(positional: list[str]) -> int:
    """Prints a line a part."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    origin = note_origin() if FLAGS.receipt else None
    figures, console = {}, Console(width=120)
    table = Table(title=f"parts of a layer at {FLAGS.rows} rows, one device")
    for column in ("part", "served ms", "plain ms", "ratio", "cpu ratio", "quartiles"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_checkpoint(Path(scratch))
        model = fnx_jax.load(folder, lanes=LANES, context=2 * REACH, draft_head=False)
        for name, found in parts(model, FLAGS.rows, FLAGS.repeats):
            figures[name] = asdict(found)
            table.add_row(name, *found.columns())
    console.print(table)
    if origin is not None:
        prints = asdict(model.fingerprint)
        receipt = make_receipt(origin, "parts", jax.devices()[0].device_kind, figures, fingerprint=prints)
        console.print(f"receipt: {write_receipt(receipt)}")
    return 0


if __name__ == "__main__":
    run(main, FLAGS)
