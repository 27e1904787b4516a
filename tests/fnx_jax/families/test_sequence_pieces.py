"""Pieces of the sequence functions: EXL3 weights, pools of several widths, the tie rule, errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints.exl3 import read_linear
from checkpoints.store import open_store
from fnx_jax.families.flash_next.load import Arithmetic, StoreLeaves
from fnx_jax.families.flash_next.params import AttentionParams
from fnx_jax.families.flash_next.sequence import functions
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.moe import routed_experts
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.history import token_history
from fnx_jax.mesh import make_mesh
from pallas_kernels import exl3
from tests.fnx_jax.cases import FOLDER, distance
from tests.fnx_jax.families.sequence_model import sequence_model


def test_linear_of_an_exl3_weight_equals_the_tiled_one():
    with open_store(FOLDER / "exl3" / "linear.safetensors") as store:
        weight = read_linear(store, "mul1_1p5")
        x, wanted = store.read("mul1_1p5/x").astype(np.float32), store.read("mul1_1p5/y64")
    halves, floats = exl3.decoded(weight), exl3.decoded(weight, np.float32)
    assert weight.bias is not None
    run = jax.jit(lambda x, *weights: (exl3.linear(x, weights[0]), [linear(x, w, w.out_features) for w in weights]))
    tiled, (packed, half, exact) = jax.device_get(run(x, weight, halves, floats))
    assert distance(packed, tiled) < 1e-6
    assert distance(half, tiled) < 1e-6
    assert distance(exact, wanted) < 1e-5


def test_linear_of_an_exl3_weight_passes_gradients_to_its_rows_under_vmap():
    with open_store(FOLDER / "exl3" / "linear.safetensors") as store:
        weight = read_linear(store, "mul1_1p5")
    x = np.random.default_rng(4).standard_normal((3, weight.in_features)).astype(np.float32)

    def slope(x: jax.Array, weight: exl3.Exl3Weight | exl3.DecodedWeight) -> jax.Array:
        return jnp.sum(linear(x, weight, weight.out_features))

    run = jax.jit(lambda x, *weights: [jax.vmap(jax.grad(slope), (0, None))(x, w) for w in weights])
    packed, exact = jax.device_get(run(x, weight, exl3.decoded(weight, np.float32)))
    # As served, what flows back is rounded to float16 where rows were.
    assert distance(packed, exact) < 2e-3
    assert np.abs(exact).min(axis=0).max() > 0


def test_linear_extends_narrow_rows_and_cuts_outputs_of_a_wider_exl3_weight():
    with open_store(FOLDER / "exl3" / "linear.safetensors") as store:
        weight = exl3.decoded(read_linear(store, "mul1_1p5"))
    x = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    run = jax.jit(linear, static_argnums=2)
    whole = run(np.pad(x, ((0, 0), (0, weight.in_features - 200))), weight, weight.out_features)
    assert np.array_equal(np.asarray(run(x, weight, 300)), np.asarray(whole)[:, :300])


def test_experts_of_several_widths_match_the_format():
    config = dataclasses.replace(sequence_model("base").config, hidden=256, expert_ffn=128, experts=16)
    arrays = load_file(FOLDER / "exl3" / "moe.safetensors")
    with open_store(FOLDER / "exl3" / "moe.safetensors") as store:
        leaves = StoreLeaves(store, make_mesh(1), Arithmetic(exact=False, decode=False), lambda nbytes: None)
        lines, line_map = leaves.experts("model.language_model.layers.3.", config, deal(config, 1))
    assert min(len(lines.gate), len(lines.up), len(lines.down)) > 1
    x, weight = arrays["x"].astype(np.float32), arrays["topk_weight"].astype(np.float32)
    run = jax.jit(functools.partial(routed_experts, config=config))
    found = run(x, arrays["topk_index"], weight, lines, line_map)
    # Operands are rounded to float16 before each of three products.
    assert distance(np.asarray(found), arrays["y64"]) < 2e-3


def test_equal_scores_keep_the_lower_blocks():
    model = sequence_model("base")
    params, config = model.params.layers[3].mixer, model.config
    assert isinstance(params, AttentionParams)
    x = np.random.default_rng(2).standard_normal((22, config.hidden)).astype(np.float32)
    assert isinstance(params.index, jax.Array)
    tied = dataclasses.replace(params, index=jnp.zeros_like(params.index))
    visible = np.asarray(jax.jit(model.functions.visible_tokens)(x, tied))
    for row in range(22):
        seen = (row + 1) // config.block * config.block
        wanted = [*range(min(config.index_budget, seen)), *range(seen, row + 1)]
        assert np.flatnonzero(visible[row]).tolist() == wanted


def test_functions_name_what_is_wrong():
    model = sequence_model("base")
    f, token, ngram = model.functions, model.tokens(0), model.ngrams[0]
    with pytest.raises(ValueError, match=r"tokens \[2, 26\].*vmap"):
        f.forward(model.params, np.stack([token, token]), ngram)
    with pytest.raises(ValueError, match=r"n-gram embeddings \[25, 1, 64\]"):
        f.forward(model.params, token, ngram[:-1])
    with pytest.raises(ValueError, match="no draft head"):
        f.mtp_forward(dataclasses.replace(model.params, mtp=None), jnp.zeros((2, 256)), token[:2])
    with pytest.raises(ValueError, match="takes an n-gram embedding"):
        f.layer(jnp.zeros((2, 256)), model.params.layers[1])
    with pytest.raises(ValueError, match="3 to 128 features, but the weight has 64 to 128"):
        linear(jnp.zeros((2, 3)), model.params.head, 128)
    with pytest.raises(ValueError, match="a chunk of 0"):
        functions(model.config, chunk=0)


def test_experts_that_are_not_resident_are_refused():
    model = sequence_model("base")
    params, config = model.params.layers[0].moe, model.config
    up = jax.tree.map(lambda a: a[:3], params.lines.up)
    fewer = dataclasses.replace(params, lines=dataclasses.replace(params.lines, up=up))
    with pytest.raises(ValueError, match="3 lines for 16 experts"):
        jax.eval_shape(functions(config).moe, jnp.zeros((2, config.hidden)), fewer)


def test_token_history_is_newest_first_and_minus_one_before_the_start():
    history = token_history(np.array([7, 8, 9]), 2)
    assert history.tolist() == [[-1, -1], [7, -1], [8, 7]]
