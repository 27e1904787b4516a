"""The training network against the sequence functions, which the golden cases hold to the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.train import attention, network
from experiments.train.drafts import draft_hidden
from experiments.train.experts import expert_mix, places
from fnx_jax.families.flash_next.sequence import functions, residual
from fnx_jax.families.flash_next.sequence.delta_rule import unit_lower_inverse
from pallas_kernels.expert_matmul import resident_map
from tests.experiments.train import tiny
from tests.fnx_jax.cases import distance

ROWS = (2, 12)


def rows(width: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS[0] * ROWS[1], width)).astype(np.float32)


def per_sequence(f, x_RD):
    return np.concatenate([np.asarray(f(x_TD)) for x_TD in x_RD.reshape(*ROWS, -1)])


def test_attention_equals_the_sequence_function():
    config, f = tiny.config(), functions(tiny.config())
    mixer, x = tiny.params().layers[1].mixer, rows(config.hidden)
    assert not jax.jit(f.visible_tokens)(x[: ROWS[1]], mixer)[-1].all()  # the selection drops something
    y, index = jax.jit(lambda x: attention.attend(x, mixer, config, ROWS))(x)
    assert distance(np.asarray(y), per_sequence(jax.jit(lambda x: f.sparse_attention(x, mixer)), x)) < 1e-5
    assert index > 0


def test_read_equals_the_sequence_function():
    config, hyper = tiny.config(), tiny.params().layers[0].mixer_hyper
    streams = rows(config.streams * config.hidden)
    found, wanted = (jax.jit(f, static_argnums=2)(streams, hyper, config) for f in (network.read, residual.read))
    for a, b in zip(found, wanted, strict=True):
        assert distance(np.asarray(a), np.asarray(b)) < 1e-5


def test_experts_equal_the_dense_sum_and_drop_what_finds_no_room():
    config, lines, x = tiny.config(), tiny.params().layers[0].moe.lines, rows(tiny.SIZES.hidden)
    share = np.exp(rows(config.experts, 4))
    expert = jnp.asarray(np.argsort(-share, axis=1)[:, :2].astype(np.int32))
    weight = np.take_along_axis(share / share.sum(axis=1, keepdims=True), np.asarray(expert), axis=1)
    pools = (lines.gate[0], lines.up[0], lines.down[0])

    def dense(x, weight, *pools):
        one = jnp.sum(jax.nn.one_hot(expert, config.experts) * weight[..., None], axis=1)
        hidden = jax.nn.silu(jnp.einsum("rd,efd->ref", x, pools[0])) * jnp.einsum("rd,efd->ref", x, pools[1])
        return jnp.einsum("ref,edf,re->rd", hidden, pools[2], one)

    def buffered(x, weight, *pools):
        return expert_mix(x, expert, weight, *pools, room=len(x))

    found, wanted = (
        jax.jit(jax.value_and_grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a))), tuple(range(5))))(x, weight, *pools)
        for f in (buffered, dense)
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert distance(np.asarray(a), np.asarray(b)) < 1e-5
    where = jax.jit(places, static_argnames=("experts", "room"))(jnp.array([[0, 1], [0, 2], [0, 1]]), experts=3, room=2)
    assert where.slot_RA.tolist() == [[0, 2], [1, 4], [6, 3]]  # the third pick of expert 0 has no place
    assert where.row_S.tolist() == [0, 1, 0, 2, 1, 3]
    out = jax.jit(expert_mix, static_argnames="room")(
        x[:3], jnp.array([[0, 1], [0, 2], [0, 1]]), jnp.ones((3, 2)), *pools, room=1
    )
    assert out[0].any() and out[1].any() and not out[2].any()


def test_chained_drafts_equal_the_draft_head_over_real_pairs_and_a_guess():
    """Depth 1 is the head over all pairs; depth 2 of a row is the head over its real pairs and one guessed."""
    config = tiny.config(budget=64)
    params, f = tiny.params(budget=64), functions(config)
    streams, token = rows(config.streams * config.hidden), np.arange(24, dtype=np.int32).reshape(ROWS)
    hidden, _ = jax.jit(draft_hidden, static_argnums=(1, 4, 5))(params, config, streams, token, 2, network.EVERY_PICK)
    real, ahead = streams[: ROWS[1] - 2], token[0, 1 : ROWS[1] - 1]

    @jax.jit
    def head(params, streams):
        streams = f.mtp_streams(params, streams, ahead)
        return streams, residual.read_only(streams, params.mtp.mixer, config)

    params = mapped(params)
    first, read = head(params, real)
    assert distance(np.asarray(hidden[0][: len(real)]), np.asarray(read)) < 1e-5
    for row in (0, 5):
        pairs = np.concatenate([real[: row + 1], first[row : row + 1], real[row + 2 :]])  # no row sees a later one
        _, read = head(params, pairs)
        assert distance(np.asarray(hidden[1][row]), np.asarray(read[row + 1])) < 1e-5


def mapped(params):
    """With the draft layer's line map, which the sequence functions take and training leaves out: in order of ids."""
    lines = np.tile(np.arange(tiny.SIZES.experts, dtype=np.int32), (3, 1))
    layer = params.mtp.layer
    moe = layer.moe.replace(line_map=resident_map(np.zeros_like(lines), lines))
    return params.replace(mtp=params.mtp.replace(layer=layer.replace(moe=moe)))


@pytest.mark.parametrize("size", (1, 5, 16, 40))
def test_inverse_by_matmuls_holds_for_rows_that_repeat(size):
    """Equal keys without decay give the largest entries that there are."""
    repeated = jnp.ones((size, size))
    found = np.asarray(jax.jit(unit_lower_inverse)(repeated))
    assert np.abs(found - np.linalg.inv(np.tril(np.ones((size, size))))).max() < 1e-3
