"""The keyed noise: known answers, an independent Threefry, exact uniforms, and what each bit depends on."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from pallas_kernels.keyed_noise import gumbel_noise, seed_words
from pallas_kernels.keyed_noise.reference import noise_words, threefry2x32, uniform
from pallas_kernels.keyed_noise.shapes import SHAPES

WORD = 0xFFFFFFFF

# key, counter, hash: the published vectors of Threefry-2x32 with 20 rounds.
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]

# seed, choice, position, id: the 64 bits as one integer, the bits of the float32 noise.
STORED = [
    (0x0, 0, 0, 0, 0xF84E83122FEF64F3, 0xBFA087B0),
    (0x0, 0, 1, 0, 0xAD95C101AC976AA4, 0xBE003C70),
    (0x0, 1, 0, 0, 0x14A3CC6A157DCF0F, 0x401E7A5D),
    (0x0, 0, 0, 1, 0x62D8FBA1188DDE0D, 0x3F37AF56),
    (0x1, 0, 0, 0, 0xC64BB8475D72EF94, 0xBECC1EEE),
    (0x100000000, 0, 0, 0, 0xDCD56E666F0BF614, 0xBF2F87AD),
    (0x2A, 0, 17, 248319, 0xEA6C90C7D44DD9AA, 0xBF67DA44),
    (0x123456789ABCDEF0, 3, 262143, 151643, 0xA19FFB61C5A54EC3, 0x3B09BE08),
    (0xFFFFFFFFFFFFFFFF, 7, 1048575, 79615, 0xE7F1EBF7EF40EB72, 0xBF5C575B),
    (0x134D765, 0, 5, 11, 0xA1E49A1B3C3BDC59, 0xBA432D65),
    (0x7, 0, 2969, 0, 0x000472BFB4B053E4, 0x411990A4),
    (0x7, 0, 350, 0, 0xFFFD80A1644F69F8, 0xC014784A),
]


def python_threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 on Python integers, written from the paper's description."""
    schedule = [key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1]]
    x, y = (counter[0] + key[0]) & WORD, (counter[1] + key[1]) & WORD
    for step in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]
        x = (x + y) & WORD
        y = (((y << turn) & WORD) | (y >> (32 - turn))) ^ x
        if step % 4 == 3:
            injection = step // 4 + 1
            x = (x + schedule[injection % 3]) & WORD
            y = (y + schedule[(injection + 1) % 3] + injection) & WORD
    return x, y


def python_bits(seed: int, choice: int, position: int, token: int) -> int:
    row_key = python_threefry((seed & WORD, seed >> 32 & WORD), (position, choice))
    high, low = python_threefry(row_key, (token, 0))
    return high << 32 | low


def exact_uniform(bits: int) -> Fraction:
    if bits == 0:
        return Fraction(1, 1 << 65)
    cut = max(bits.bit_length() - 24, 0)
    return Fraction(bits >> cut << cut, 1 << 64)


def inputs(rows: list[tuple[int, int, int, int]]) -> tuple[jax.Array, ...]:
    seeds, choices, positions, ids = zip(*rows, strict=True)
    return (
        jnp.asarray(np.stack([seed_words(seed) for seed in seeds])),
        jnp.asarray(choices, jnp.int32),
        jnp.asarray(positions, jnp.int32),
        jnp.asarray(ids, jnp.int32)[:, None],
    )


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN_ANSWERS)
def test_threefry_gives_the_published_answers(key, counter, answer):
    words = threefry2x32(tuple(map(jnp.uint32, key)), tuple(map(jnp.uint32, counter)))
    assert tuple(map(int, words)) == answer == python_threefry(key, counter)


def test_threefry_equals_the_primitive_of_jax_random():
    words = jnp.asarray(np.random.default_rng(1).integers(0, 1 << 32, (4, 500), np.uint32))
    ours = jax.jit(lambda w: threefry2x32((w[0], w[1]), (w[2], w[3])))(words)
    theirs = threefry2x32_p.bind(*words)
    assert np.array_equal(np.stack(ours), np.stack(theirs))


def test_noise_gives_the_stored_vectors():
    rows = [row[:4] for row in STORED]
    high, low = jax.jit(noise_words)(*inputs(rows))
    noise = np.asarray(jax.jit(gumbel_noise)(*inputs(rows)))[:, 0].view(np.uint32)
    got = [(int(h) << 32 | int(w), int(g)) for h, w, g in zip(high[:, 0], low[:, 0], noise, strict=True)]
    assert [tuple(map(hex, pair)) for pair in got] == [tuple(map(hex, row[4:])) for row in STORED]


def test_words_follow_the_written_definition():
    rng = np.random.default_rng(2)
    rows = [
        (int(rng.integers(0, 1 << 63)) * 2 + i % 2, int(rng.integers(0, 8)), int(rng.integers(0, 1 << 20)), 7 * i)
        for i in range(40)
    ]
    high, low = jax.jit(noise_words)(*inputs(rows))
    got = [int(h) << 32 | int(w) for h, w in zip(high[:, 0], low[:, 0], strict=True)]
    assert got == [python_bits(*row) for row in rows]


def test_uniform_is_exact_for_every_leading_bit():
    rng = np.random.default_rng(3)
    bits = [0, 1, WORD, WORD + 1, (1 << 64) - 1, 1 << 63]
    for length in range(1, 65):
        bits += [1 << (length - 1) | int(rng.integers(0, 1 << 63)) >> (64 - length) for _ in range(4)]
    words = np.array([[b >> 32 for b in bits], [b & WORD for b in bits]], np.uint32)
    v = np.asarray(jax.jit(uniform)(jnp.asarray(words[0]), jnp.asarray(words[1])))
    assert [Fraction(float(x)) for x in v] == [exact_uniform(b) for b in bits]
    assert 0 < v.min() and v.max() < 1


def test_noise_is_the_gumbel_variable_of_its_uniform():
    rows = [(5, 0, position, 3) for position in range(2000)]
    v = np.array([float(exact_uniform(python_bits(*row))) for row in rows])
    truth = -np.log(-np.log1p(-v))
    noise = np.asarray(jax.jit(gumbel_noise)(*inputs(rows)), np.float64)[:, 0]
    assert np.all(np.abs(noise - truth) <= 4 * 2.0**-24 * np.maximum(np.abs(truth), 1))


def test_rare_tokens_keep_their_chance():
    """The least uniform must reach the noise of a probability of 2**-65; the mirrored formula stops near 2**-24."""
    least, most = jnp.uint32([0, WORD]), jnp.uint32([0, WORD])
    v = uniform(least, most)
    assert abs(float(-jnp.log(-jnp.log1p(-v[0]))) - 65 * np.log(2)) < 1e-4
    assert float(-jnp.log(-jnp.log(v[1]))) < 17  # mirrored: what its largest noise would be


def changed_by_every_input(noise) -> bool:
    """Whether noise changes with each input alone, the seed's two words included."""
    base = (3, 1, 50, 9)
    others = [(4, 1, 50, 9), (3 + (1 << 32), 1, 50, 9), (3, 2, 50, 9), (3, 1, 51, 9), (3, 1, 50, 10)]
    values = np.asarray(noise(*inputs([base, *others])))[:, 0]
    return len(set(values.tolist())) == len(values)


def test_every_input_changes_the_noise():
    assert changed_by_every_input(gumbel_noise)
    assert not changed_by_every_input(lambda s, c, p, i: gumbel_noise(s, jnp.zeros_like(c), p, i))
    assert not changed_by_every_input(lambda s, c, p, i: gumbel_noise(s.at[:, 1].set(0), c, p, i))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_noise_of_a_row_does_not_depend_on_its_company(shape):
    rows = [(11 + row, row % 3, 1000 + row, 0) for row in range(shape.rows)]
    seed_B2, choice_B, position_B, _ = inputs(rows)
    ids_1K = jnp.arange(shape.ids, dtype=jnp.int32)[None]
    together = np.asarray(jax.jit(gumbel_noise)(seed_B2, choice_B, position_B, ids_1K))
    last = slice(shape.rows - 1, shape.rows)
    alone = jax.jit(gumbel_noise)(seed_B2[last], choice_B[last], position_B[last], ids_1K[:, ::-1])
    assert np.array_equal(together[last], np.asarray(alone)[:, ::-1])
    few = jax.jit(gumbel_noise)(seed_B2, choice_B, position_B, ids_1K[:, 100:107])
    assert np.array_equal(together[:, 100:107], np.asarray(few))


def test_seed_words_split_any_64_bit_seed():
    assert seed_words(0).tolist() == [0, 0]
    assert seed_words((5 << 32) + 7).tolist() == [7, 5]
    assert seed_words(-1).tolist() == seed_words((1 << 64) - 1).tolist() == [WORD, WORD]
    for seed in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(ValueError, match=str(seed)):
            seed_words(seed)


def test_wrong_types_are_refused_by_name():
    seed_B2, choice_B, position_B, ids_BK = inputs([(1, 2, 3, 4)])
    with pytest.raises(ValueError, match="seed is int32"):
        gumbel_noise(seed_B2.astype(jnp.int32), choice_B, position_B, ids_BK)
    with pytest.raises(ValueError, match="position is float32"):
        gumbel_noise(seed_B2, choice_B, position_B.astype(jnp.float32), ids_BK)
