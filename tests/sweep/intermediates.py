"""Runs a function so that values inside it become outputs of the program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Literal

MOST_VALUES, MOST_ENTRIES = 12, 1 << 20
"""What matters is that neighbours of an operation are outputs: some of many values will do, and large ones stay in."""


def with_intermediates(function: Callable, *args: Any) -> tuple[Any, list[jax.Array]]:
    """Returns function(*args) and up to 12 of the values computed on the way, those of called functions included."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    seen: list[jax.Array] = []
    results = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args), seen)
    small = [value for value in seen if value.size <= MOST_ENTRIES]
    return jax.tree.unflatten(jax.tree.structure(shape), results), small[:: -(-len(small) // MOST_VALUES) or 1]


def _evaluate(jaxpr: Any, consts: list, args: list, seen: list[jax.Array]) -> list:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        operands = [var.val if isinstance(var, Literal) else values[var] for var in eqn.invars]
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if eqn.primitive.name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
            results = _evaluate(inner.jaxpr, inner.consts, operands, seen)
        else:
            results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            results = results if eqn.primitive.multiple_results else [results]
            seen.extend(results)
        values.update(zip(eqn.outvars, results, strict=True))
    return [var.val if isinstance(var, Literal) else values[var] for var in jaxpr.outvars]
