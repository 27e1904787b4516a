"""Host side: from tokens to rows of the hashed n-gram table, in exact 64-bit integers. Read next: ngram.py.

Every head hashes the last two, three, ... tokens into its own range of rows. Multipliers and ranges follow from a few
config values, so that what a checkpoint stores can be held against them.
"""

from math import isqrt

import numpy as np
from jaxtyping import Int, Int64

from checkpoints.errors import CheckpointError
from checkpoints.naming import positive_int

DEFAULT_SEED = 1234
"""Where the config has none."""
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LAYER_SEED_STEP = 10007


def row_ids(
    tokens_BN: Int[np.ndarray, "B N"],
    eos: int,
    multipliers_N: Int64[np.ndarray, "N"],
    sizes_H: Int64[np.ndarray, "H"],
    offsets_H: Int64[np.ndarray, "H"],
) -> Int64[np.ndarray, "B H"]:
    """Returns the table rows that each token reads, one a head, lower orders first.

    For order n in 2..N and each head of it: id = (XOR_{j<n} ctx_j * multiplier_j) mod size + offset, where ctx_0 is the
    token and ctx_j the j-th before it, or `eos` once the walk back has met an eos or the start. A token that is eos
    itself still looks back.

    Args:
      tokens_BN: the token, then the ones before it, newest first; -1 before the start.
      eos: the id that resets. multipliers_N, sizes_H, offsets_H: see `derive_hash`.
    Raises: ValueError where tokens_BN is not [B, N], a token itself is negative, or the heads do not divide by N - 1.
    """
    N, heads = len(multipliers_N), len(sizes_H)
    if tokens_BN.ndim != 2 or tokens_BN.shape[1] != N or not np.issubdtype(tokens_BN.dtype, np.integer):
        raise ValueError(f"row_ids: {tokens_BN.dtype} {list(tokens_BN.shape)}, integers [B, {N}] were wanted")
    if heads % (N - 1):
        raise ValueError(f"row_ids: {heads} heads do not divide into the {N - 1} orders 2 to {N}")
    if np.any(tokens_BN[:, 0] < 0):
        raise ValueError("row_ids: a row without a token of its own: column 0 holds a negative id")
    products_BN = context(tokens_BN, eos) * multipliers_N  # int64, wrapping
    mixed_BN = np.bitwise_xor.accumulate(products_BN, axis=1)
    mixed_BH = np.repeat(mixed_BN[:, 1:], heads // (N - 1), axis=1)
    return np.remainder(mixed_BH, sizes_H) + offsets_H


def context(tokens_BN: Int[np.ndarray, "B N"], eos: int) -> Int64[np.ndarray, "B N"]:
    """Replaces what lies behind an eos or before the start by `eos`; column 0, the token itself, stays."""
    context_BN = tokens_BN.astype(np.int64)
    previous = context_BN[:, 1:]
    stopped = np.logical_or.accumulate((previous == eos) | (previous < 0), axis=1)
    context_BN[:, 1:] = np.where(stopped, eos, previous)
    return context_BN


def derive_hash(
    vocab_size: int, seed: int, layer_q: int, ngram_size: int, heads_per_ngram: int, base: int
) -> tuple[Int64[np.ndarray, "N"], Int64[np.ndarray, "H"], Int64[np.ndarray, "H"]]:
    """Derives what a table's hash tensors must hold; H = (ngram_size - 1) * heads_per_ngram.

    multiplier_i = 2 * (mix(seed + 10007 q + g (i+1)) mod half) + 1 with half = ((2^63 - 1) // vocab_size) // 2, so that
    no product leaves int64; sizes: primes from `base` on, each layer taking the next H; offsets: their running sum.

    Args:
      layer_q: the layer's number among the n-gram layers, from 0. base: smallest size allowed.
    Returns: multipliers [N], sizes [H], offsets [H].
    Source: SplitMix64, Steele et al., OOPSLA 2014 (mix, g).
    """
    half = ((2**63 - 1) // vocab_size) // 2
    start = seed + _LAYER_SEED_STEP * layer_q
    multipliers = [2 * (_mix64(start + _GOLDEN * (i + 1)) % half) + 1 for i in range(ngram_size)]
    heads = (ngram_size - 1) * heads_per_ngram
    sizes = np.array(_primes_from(base, (layer_q + 1) * heads)[layer_q * heads :], np.int64)
    return np.array(multipliers, np.int64), sizes, np.cumsum(sizes) - sizes


def configured_hash(
    text: dict, layer_q: int
) -> tuple[Int64[np.ndarray, "N"], Int64[np.ndarray, "H"], Int64[np.ndarray, "H"]]:
    """`derive_hash` with what the text part of config.json says; raises CheckpointError naming a bad key."""
    seed = text.get("seed", DEFAULT_SEED)
    if type(seed) is not int:
        raise CheckpointError(f"config.json: seed must be an integer, not {seed!r}")
    if positive_int(text, "ngram_size") < 2:
        raise CheckpointError("config.json: ngram_size must be at least 2 where a layer has an n-gram table")
    return derive_hash(
        vocab_size=positive_int(text, "vocab_size"),
        seed=seed,
        layer_q=layer_q,
        ngram_size=positive_int(text, "ngram_size"),
        heads_per_ngram=positive_int(text, "heads_per_ngram"),
        base=positive_int(text, "ngram_vocab_size_base"),
    )


def _mix64(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def _primes_from(base: int, count: int) -> list[int]:
    """The first `count` primes that are at least `base`."""
    found: list[int] = []
    candidate = max(base, 2)
    while len(found) < count:
        if _is_prime(candidate):
            found.append(candidate)
        candidate += 1
    return found


def _is_prime(number: int) -> bool:
    """Trial division: table sizes are tens of millions, so a few thousand divisors settle one."""
    if number % 2 == 0:
        return number == 2
    return number > 2 and bool(np.all(number % np.arange(3, isqrt(number) + 1, 2)))
