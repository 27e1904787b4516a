"""The sequence functions under jit, vmap and grad, and the two forms of the recurrence against each other."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.families.flash_next.params import AttentionParams, DeltaParams, ModelParams
from fnx_jax.families.flash_next.sequence import functions
from fnx_jax.families.flash_next.sequence.delta_rule import RuleInputs, rule_by_chunks, rule_by_rows
from tests.fnx_jax.cases import distance
from tests.fnx_jax.families.sequence_model import SequenceModel, sequence_model

ROWS = 16
STEP = 1e-5


def shallow(exact: bool = True) -> SequenceModel:
    """A golden case with one layer of each kind: recurrent, recurrent with an n-gram embedding, attention."""
    model = sequence_model("official_names", exact)
    config = dataclasses.replace(model.config, layer_kinds=("delta", "delta", "attention"))
    layers = tuple(model.params.layers[i] for i in (0, 1, 3))
    params = dataclasses.replace(model.params, layers=layers)
    return dataclasses.replace(model, config=config, functions=functions(config), params=params)


def in_float64(tree):
    """The tree on the host, its floats widened; use it with x64 enabled."""
    host = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, host)


def delta_params(model: SequenceModel) -> DeltaParams:
    mixer = model.params.layers[0].mixer
    assert isinstance(mixer, DeltaParams)
    return mixer


def test_vmap_over_sequences_equals_one_by_one():
    model = shallow()
    forward = jax.jit(model.functions.forward)
    token = np.stack([model.tokens(0)[first : first + ROWS] for first in (0, 16, 24)])
    ngram = np.stack([model.ngrams[0][first : first + ROWS] for first in (0, 16, 24)])
    batched = np.asarray(jax.jit(jax.vmap(model.functions.forward, (None, 0, 0)))(model.params, token, ngram))
    for b in range(3):
        alone = np.asarray(forward(model.params, token[b], ngram[b]))
        assert distance(batched[b], alone) < 1e-5
    assert distance(batched[1], batched[2]) > 0.1


def loss(model: SequenceModel, params: ModelParams, token_T: jax.Array, ngram_TLE: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token, plus that of the draft head's."""
    f = model.functions
    streams = f.streams(params, token_T, ngram_TLE)
    main = jax.nn.log_softmax(f.logits(params, streams[:-1]))
    draft = jax.nn.log_softmax(f.mtp_forward(params, streams[:-2], token_T[1:-1]))
    return -jnp.mean(pick(main, token_T[1:])) - jnp.mean(pick(draft, token_T[2:]))


def pick(logprob_TV: jax.Array, token_T: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logprob_TV, token_T[:, None], axis=1)


LEAVES: dict[str, Callable[[Any], np.ndarray]] = {
    "embedding": lambda p: p.embedding,
    "recurrent projection": lambda p: p.layers[0].mixer.qkv,
    "recurrent convolution": lambda p: p.layers[0].mixer.rule.conv_CT,
    "decay": lambda p: p.layers[0].mixer.rule.decay_log,
    "stream gate": lambda p: p.layers[0].mixer_hyper.inject,
    "n-gram key": lambda p: p.layers[1].ngram.key,
    "router": lambda p: p.layers[0].moe.router,
    "expert": lambda p: p.layers[1].moe.lines.down[0],
    "attention query": lambda p: p.layers[2].mixer.q,
    "draft fusion": lambda p: p.mtp.fc_hidden,
    "head": lambda p: p.head,
}


def test_gradient_is_finite_and_equals_finite_differences_in_float64():
    model = shallow()
    with jax.enable_x64(True):
        params, token, ngram = in_float64(model.params), model.tokens(0)[:ROWS], in_float64(model.ngrams[0][:ROWS])
        both = jax.jit(jax.value_and_grad(functools.partial(loss, model), allow_int=True))
        gradient = jax.tree.map(np.asarray, both(params, token, ngram)[1])
        floating = [g for g in jax.tree.leaves(gradient) if g.dtype == np.float64]
        assert all(np.isfinite(g).all() for g in floating)
        random = np.random.default_rng(3)
        for name, leaf in LEAVES.items():
            direction = random.standard_normal(leaf(params).shape)
            direction = direction / np.linalg.norm(direction)
            ahead, behind = (
                both(moved(params, leaf(params), sign * STEP * direction), token, ngram)[0] for sign in (1, -1)
            )
            slope = float(ahead - behind) / (2 * STEP)
            wanted = float(np.sum(leaf(gradient) * direction))
            print(f"{name}: slope {wanted:.6f}, off by {abs(slope - wanted):.1e}")
            assert abs(wanted) > 1e-5, name
            assert abs(slope - wanted) < 1e-6 * abs(wanted) + 1e-9, name
        mixer = gradient.layers[2].mixer
        assert isinstance(mixer, AttentionParams)
        assert not np.asarray(mixer.index).any()  # selection passes no gradient


def moved(params: ModelParams, leaf: np.ndarray, by: np.ndarray) -> ModelParams:
    """The tree with one of its leaves moved."""
    return jax.tree.map(lambda a: a + by if a is leaf else a, params)


def test_gradient_in_served_arithmetic_has_the_leaves_dtypes():
    model = shallow(exact=False)
    tree = jax.eval_shape(
        jax.grad(functools.partial(loss, model), allow_int=True), model.params, model.tokens(0), model.ngrams[0]
    )
    for leaf, gradient in zip(jax.tree.leaves(model.params), jax.tree.leaves(tree), strict=True):
        assert gradient.shape == leaf.shape
        assert gradient.dtype == (leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jax.dtypes.float0)


def test_chunk_form_of_a_block_equals_its_row_form_in_float64():
    model = shallow()
    with jax.enable_x64(True):
        params = in_float64(delta_params(model))
        x = np.random.default_rng(5).standard_normal((40, model.config.hidden))
        rows = jax.jit(model.functions.gated_delta)(x, params)
        chunks = jax.jit(functions(model.config, chunk=16).mix)(x, params)
        assert rows.dtype == jnp.float64
        assert distance(np.asarray(chunks), np.asarray(rows)) < 1e-12


@pytest.mark.parametrize("decay", (0.01, 1.0, 800.0))
def test_chunk_form_of_the_rule_and_its_gradient_equal_the_row_form(decay):
    random = np.random.default_rng(7)
    with jax.enable_x64(True):
        q, k, v = (random.standard_normal((21, 2, size)) for size in (8, 8, 6))
        k = k / np.linalg.norm(k, axis=-1, keepdims=True)
        beta, log_decay = (random.uniform(size=(21, 2)) for _ in range(2))
        inputs = RuleInputs(*map(jnp.asarray, (q, k, v, beta, -decay * log_decay)))
        rows, chunks = rule_forms()
        for found, wanted in zip(jax.tree.leaves(chunks(inputs)), jax.tree.leaves(rows(inputs)), strict=True):
            assert np.isfinite(np.asarray(wanted)).all()
            assert distance(np.asarray(found), np.asarray(wanted)) < 1e-12


@functools.cache
def rule_forms() -> list[Callable]:
    """Both forms with their gradients: by rows, then by chunks."""

    def with_gradient(form: Callable) -> Callable:
        return jax.jit(lambda inputs: (form(inputs), jax.grad(lambda i: jnp.sum(jnp.sin(form(i))))(inputs)))

    return [with_gradient(rule_by_rows), with_gradient(functools.partial(rule_by_chunks, chunk=8))]
