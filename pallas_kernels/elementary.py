"""Traced: exp and log as written arithmetic, so that a value has one result wherever a compiler computes it.

XLA:CPU holds more than one routine for each and picks by the shape of the loop around them: a lone vector of six, or a
column of one, may get another last bit than the same numbers in a matrix. Sums and products have no such choice.
Results are fenced: their last step is a product or a sum, which a caller's next step could merge with. GPUs have one
routine for each, and take it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

_LOG2_E = 1.44269504
# ln 2 as a value of 9 bits, whose product with a small integer is exact, and the rest.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_MANTISSA, _HALF = 0x007FFFFF, 0x3F000000
_SQRT_HALF = 0.70710678


def exp(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """e^x within one unit in the last place; 0 where the result is below 2^-125.

    Source: the scheme and coefficients of S. L. Moshier's Cephes library (expf).
    """
    if jax.default_backend() == "gpu":
        return jax.lax.optimization_barrier(jnp.exp(x))
    x = jnp.clip(x, -90, 89)
    whole = jnp.floor(x * jnp.float32(_LOG2_E) + jnp.float32(0.5))
    rest = x - whole * jnp.float32(_LN2_HIGH) - whole * jnp.float32(_LN2_LOW)
    value = _polynomial(rest, _EXP) * (rest * rest) + rest + jnp.float32(1)
    # One short of the power of two, which may be one more than a float's.
    power = jnp.maximum(whole.astype(jnp.int32) + 126, 0)
    scale = jax.lax.bitcast_convert_type(power << 23, jnp.float32)
    return jax.lax.optimization_barrier(value * scale * jnp.float32(2))


def log(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """Natural logarithm within one unit in the last place; -inf at 0 and up to 2^-126, NaN below 0.

    Source: the scheme and coefficients of S. L. Moshier's Cephes library (logf).
    """
    if jax.default_backend() == "gpu":
        return jax.lax.optimization_barrier(jnp.log(x))
    rest, whole = _split(x)
    value = _log_of(rest, whole)
    value = jnp.where(x < jnp.float32(jnp.finfo(jnp.float32).tiny), jnp.where(x < 0, jnp.nan, -jnp.inf), value)
    return jax.lax.optimization_barrier(jnp.where(x < jnp.inf, value, x))


def log1p(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """log(1 + x) within 1.5 units in the last place, for tiny x as well; -inf at -1, NaN below it.

    Source: as `log`; what rounding 1 + x lost is added at first order.
    """
    if jax.default_backend() == "gpu":
        return jax.lax.optimization_barrier(jnp.log1p(x))
    near = (x > jnp.float32(_SQRT_HALF - 1)) & (x < jnp.float32(2 * _SQRT_HALF - 1))
    total = jax.lax.optimization_barrier(x + jnp.float32(1))
    rest, whole = _split(total)
    lost = (x - (total - jnp.float32(1))) / total
    value = _log_of(jnp.where(near, x, rest), jnp.where(near, 0, whole)) + jnp.where(near, 0, lost)
    value = jnp.where(x > -1, value, jnp.where(x < -1, jnp.nan, -jnp.inf))
    return jax.lax.optimization_barrier(jnp.where(x < jnp.inf, value, x))


def _split(x: Array) -> tuple[Array, Array]:
    """x = (1 + rest) * 2^whole, 1 + rest between sqrt(1/2) and sqrt(2), for a normal x above 0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits >> 23) - 126
    fraction = jax.lax.bitcast_convert_type((bits & _MANTISSA) | _HALF, jnp.float32)
    low = fraction < jnp.float32(_SQRT_HALF)
    rest = jnp.where(low, fraction + fraction, fraction) - jnp.float32(1)
    return rest, jnp.where(low, exponent - 1, exponent).astype(jnp.float32)


def _log_of(rest: Array, whole: Array) -> Array:
    """log((1 + rest) * 2^whole)."""
    square = rest * rest
    tail = _polynomial(rest, _LOG) * rest * square + whole * jnp.float32(_LN2_LOW) - jnp.float32(0.5) * square
    return rest + tail + whole * jnp.float32(_LN2_HIGH)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + jnp.float32(coefficient)
    return total
