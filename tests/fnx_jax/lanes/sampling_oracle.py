"""The draw in float64 and exact integers, for one row at a time, and the rows that tests draw."""

from dataclasses import dataclass, replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from fnx_jax.lanes.sampling import DrawParams, draw
from pallas_kernels.keyed_noise import seed_words

V = 320
WIDE = 4096

drawn = jax.jit(draw, static_argnames="candidates")


@dataclass(frozen=True)
class Row:
    """One row's parameters, in the order of DrawParams."""

    seed: int = 7
    choice: int = 0
    position: int = 100
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


KINDS = [
    Row(),
    Row(temperature=0.0),
    Row(temperature=0.0, top_k=5, top_p=0.5, min_p=0.2),
    Row(top_k=20, top_p=0.95),
    Row(top_k=1),
    Row(top_k=3, temperature=2.5),
    Row(top_p=0.9),
    Row(top_p=0.3, temperature=0.7),
    Row(top_p=1e-9),
    Row(min_p=0.05),
    Row(min_p=1.0),
    Row(top_k=50, top_p=0.8, min_p=0.02, temperature=1.3),
    Row(temperature=1e-5, seed=1 << 40),
    Row(top_k=V, choice=3),
    Row(top_p=0.999, seed=(1 << 64) - 1),
    Row(temperature=8.0, choice=1),
]


def at(rows: list[Row], position: int) -> list[Row]:
    return [replace(row, position=position + index) for index, row in enumerate(rows)]


def params_of(rows: list[Row]) -> DrawParams:
    def column(name: str, dtype) -> jax.Array:
        return jnp.asarray(np.array([getattr(row, name) for row in rows], dtype))

    return DrawParams(
        seed_B2=jnp.asarray(np.stack([seed_words(row.seed) for row in rows])),
        choice_B=column("choice", np.int32),
        position_B=column("position", np.int32),
        temperature_B=column("temperature", np.float32),
        top_k_B=column("top_k", np.int32),
        top_p_B=column("top_p", np.float32),
        min_p_B=column("min_p", np.float32),
    )


def normal_logits(rows: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocabulary))).astype(np.float32)


def all_valid(vocabulary: int) -> jax.Array:
    return jnp.ones(vocabulary, bool)


def tokens(logits_BV: np.ndarray, rows: list[Row], **options) -> list[int]:
    token_B, finite_B = drawn(jnp.asarray(logits_BV), all_valid(logits_BV.shape[1]), params_of(rows), **options)
    assert finite_B.all()
    return token_B.tolist()


def threefry(k0, k1, x0, x1) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32-20 in NumPy uint32."""
    keys = np.array([k0, k1, np.uint32(k0) ^ np.uint32(k1) ^ np.uint32(0x1BD11BDA)], np.uint32)
    x0, x1 = np.asarray(x0, np.uint32) + keys[:1], np.asarray(x1, np.uint32) + keys[1:2]
    for step in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]
        x0 = x0 + x1
        x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        if step % 4 == 3:
            turn = step // 4 + 1
            x0, x1 = x0 + keys[turn % 3], x1 + keys[(turn + 1) % 3] + np.uint32(turn)
    return x0, x1


def oracle_noise(row: Row, ids: list[int]) -> np.ndarray:
    low, high = seed_words(row.seed)
    key = threefry(low, high, [row.position], [row.choice])
    top, rest = threefry(key[0][0], key[1][0], ids, np.zeros(len(ids)))
    bits = [int(t) << 32 | int(r) for t, r in zip(top, rest, strict=True)]
    cut = [max(b.bit_length() - 24, 0) for b in bits]
    v = np.array([max(float(b >> c << c), 0.5) * 2.0**-64 for b, c in zip(bits, cut, strict=True)])
    return -np.log(-np.log1p(-v))


def oracle_kept(z_V: np.ndarray, row: Row, tie: int = 1) -> list[int]:
    """Ids kept by top_k, top_p and min_p, in order; masses and the nucleus in exact integers. tie=-1 swaps ties."""
    order = np.lexsort((tie * np.arange(len(z_V)), -z_V))
    order = order[: row.top_k] if row.top_k else order
    masses = np.floor(np.exp(z_V[order].astype(float) - float(z_V.max())) * 2.0**40).astype(int).tolist()
    bound = Fraction(max(1, round(Fraction(float(np.float32(row.top_p))) * 2**24)), 2**24) * sum(masses)
    kept, running = [], 0
    for i, mass in zip(order.tolist(), masses, strict=True):
        if row.top_p < 1 and running >= bound:
            break
        running += mass
        if z_V[i] > -np.inf and (not row.min_p or z_V[i] >= float(z_V.max()) + np.log(row.min_p)):
            kept.append(i)
    return kept


def oracle_token(adjusted_V: np.ndarray, row: Row, tie: int = 1) -> int:
    if row.temperature < 1e-5:
        return int(np.argmax(adjusted_V))
    z_V = adjusted_V.astype(np.float32) / np.float32(row.temperature)
    kept = oracle_kept(z_V, row, tie)
    scores = z_V[kept] + oracle_noise(row, kept)
    return min(zip(-scores, kept, strict=True))[1]
