"""Masses and their comparisons against Python's integers and fractions."""

from fractions import Fraction
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.fixed_point import carried, fraction_limbs, mass_before, mass_limbs, mass_sums, within_fraction
from pallas_kernels.fixed_point.reference import less, multiply
from pallas_kernels.fixed_point.shapes import SHAPES


def integers(limbs) -> np.ndarray:
    """Limbs of 14 bits, lowest first on the leading axis, as Python integers; limbs need not be carried."""
    return sum(
        (np.asarray(limb).astype(object) << (14 * index) for index, limb in enumerate(limbs)), np.array(0, object)
    )


def limbs_of(value: int, count: int) -> jax.Array:
    return jnp.asarray([value >> 14 * index & 0x3FFF for index in range(count)], jnp.uint32)


def shares(rows: int, count: int) -> np.ndarray:
    """Shares over 45 powers of two, with some exact ones."""
    rng = np.random.default_rng(count)
    share_BN = (rng.random((rows, count)) * 2.0 ** -rng.integers(0, 45, (rows, count))).astype(np.float32)
    share_BN[:, :1] = 1
    return share_BN


def exact_masses(share_BN: np.ndarray) -> np.ndarray:
    """floor(share * 2**40): float64 holds it exactly."""
    return np.floor(share_BN.astype(np.float64) * 2.0**40).astype(np.int64).astype(object)


def test_masses_are_the_exact_floor():
    share_BN = np.concatenate([shares(2, 3000), np.array([[0, 1, 2**-40, 2**-41, 1 - 2**-24] * 600] * 2, np.float32)])
    limbs = jax.jit(mass_limbs)(jnp.asarray(share_BN))
    assert np.array_equal(integers(limbs), exact_masses(share_BN))
    assert [int(Fraction(float(x)) * 2**40) for x in share_BN[0, :50]] == exact_masses(share_BN)[0, :50].tolist()
    assert int(limbs.max()) < 1 << 14


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sums_are_exact_and_know_no_partition(shape):
    share_BN = shares(min(shape.rows, 2), shape.masses)
    limbs = mass_limbs(jnp.asarray(share_BN))
    total = carried(mass_sums(limbs))
    assert integers(total)[:, 0].tolist() == exact_masses(share_BN).sum(axis=1).tolist()
    assert int(total.max()) < 1 << 14
    for parts in (2, 4):
        pieces = jnp.split(limbs, parts, axis=2)
        assert np.array_equal(carried(reduce(jnp.add, map(mass_sums, pieces))), total)
    assert np.array_equal(carried(mass_sums(limbs[:, :, ::-1])), total)


def test_float_sums_of_the_same_shares_depend_on_the_partition():
    share_N = jnp.asarray(shares(1, 4096)[0])
    totals = [float(sum(piece.sum() for piece in jnp.split(share_N, parts))) for parts in (1, 2, 4, 8)]
    assert len(set(totals)) > 1


@pytest.mark.parametrize("share", [1.0, 1 - 2**-24])
def test_the_fullest_sum_does_not_overflow(share):
    count = SHAPES["fullest"].masses
    share_BN = np.full((1, count), share, np.float32)
    limbs = mass_limbs(jnp.asarray(share_BN))
    assert integers(carried(mass_sums(limbs)))[0, 0] == int(Fraction(share) * 2**40) * count
    assert integers(mass_before(limbs)[:, :, -1:])[0, 0] == int(Fraction(share) * 2**40) * (count - 1)
    with pytest.raises(ValueError, match="262145"):
        mass_limbs(jnp.zeros((1, count + 1), jnp.float32))


def test_mass_before_is_the_exclusive_prefix_sum():
    share_BN = shares(3, 500)
    before = integers(jax.jit(mass_before)(mass_limbs(jnp.asarray(share_BN))))
    masses = exact_masses(share_BN)
    assert np.array_equal(before, np.cumsum(masses, axis=1) - masses)


def test_products_and_comparisons_are_those_of_integers():
    rng = np.random.default_rng(6)
    values = [0, 1, 0x3FFF, 0x4000, (1 << 70) - 1, *(int(rng.integers(1, 1 << 62)) << int(k) for k in range(9))]
    factors = [0, 1, 1 << 24, (1 << 28) - 1, 12345]
    left, right = (jnp.stack([limbs_of(v, n) for v in some], axis=1) for some, n in ((values, 5), (factors, 2)))
    assert integers(multiply(left[:, :, None], right[:, None])).tolist() == [[v * f for f in factors] for v in values]
    assert less(left[:, :, None], left[:, None]).tolist() == [[v < w for w in values] for v in values]


def test_fractions_round_to_24_bits_and_are_never_zero():
    p = np.array([1.0, 0.95, 0.5, 0.1, 2**-24, 2**-26, 0.0, 1 - 2**-24], np.float32)
    expected = [max(1, round(Fraction(float(x)) * 2**24)) for x in p]
    assert integers(fraction_limbs(jnp.asarray(p))).tolist() == expected


def test_a_prefix_is_cut_where_exact_fractions_cut_it():
    share_BN = np.sort(shares(6, 400), axis=1)[:, ::-1].copy()
    share_BN[3:] = 1  # equal shares: the running mass meets p exactly
    p_B = np.array([0.3, 0.95, 0.9999999, 0.25, 0.5, 0.5025], np.float32)

    @jax.jit
    def cut(share_BN, p_B):
        limbs = mass_limbs(share_BN)
        return within_fraction(mass_before(limbs), carried(mass_sums(limbs)), fraction_limbs(p_B)[:, :, None])

    within = cut(jnp.asarray(share_BN), jnp.asarray(p_B))
    for row, (masses, p) in enumerate(zip(exact_masses(share_BN), p_B, strict=True)):
        running, bound = 0, Fraction(round(Fraction(float(p)) * 2**24), 2**24) * int(masses.sum())
        expected = []
        for mass in masses:
            expected.append(running < bound)
            running += mass
        assert within[row].tolist() == expected
    assert within[3:].sum(axis=1).tolist() == [100, 200, 201]
