"""Traced: all matmuls of rows with the weights that every row meets, as the row programs shape them and as bare dots.

Routed experts are left out: which of them meet which rows is the router's choice.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from experiments.bench.plain.dense import bare
from fnx_jax import Model
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.mesh import SAME, on_ranks
from pallas_kernels.dense_matmul import Selected, dense_matmul
from pallas_kernels.exl3 import DecodedWeight

Matrices = list[jax.Array]


def matrices(params: ModelParams) -> Matrices:
    """Every matrix [out, in] outside the routed experts; of an EXL3 weight the decoded one."""
    tree = {"mixer": params.mixer, "head": params.head, "layers": []}
    for layer in params.layers:
        shared = {"router": layer.moe.router, "shared": layer.moe.shared}
        tree["layers"].append([layer.mixer_hyper, layer.moe_hyper, layer.mixer, layer.ngram, shared])
    kinds = (Selected, DecodedWeight)
    found: Matrices = []
    leaf: Any
    for leaf in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kinds)):
        while isinstance(leaf, kinds):
            leaf = leaf.weight if isinstance(leaf, Selected) else leaf.wq
        if leaf.ndim - _dealt(leaf) == 2 and leaf.shape[-1] > 8:  # not the taps of a convolution
            found.append(leaf)
    return found


def row_matmuls(model: Model, rows: int) -> Callable[[], object]:
    """The matmuls in the row programs' shapes; a call waits for them."""
    return _calls(model, rows, dense_matmul)


def bare_matmuls(model: Model, rows: int) -> Callable[[], object]:
    """The same arrays in bare `jnp.dot`s of all rows."""
    return _calls(model, rows, bare)


def _dealt(leaf: jax.Array) -> bool:
    return isinstance(leaf.sharding, NamedSharding) and len(leaf.sharding.spec) > 0


def _calls(model: Model, rows: int, matmul: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[], object]:
    weights = matrices(model.params)
    rng = np.random.default_rng(0)
    x = {
        f"{weight.shape[-1]}_{weight.dtype}": rng.standard_normal((rows, weight.shape[-1]), np.float32).astype(
            weight.dtype
        )
        for weight in weights
    }

    def run(weights: Matrices, x: dict[str, Any]) -> list[jax.Array]:
        return [matmul(jnp.asarray(x[f"{w.shape[-1]}_{w.dtype}"]), w) for w in weights]

    program = on_ranks(run, model.steps.device.mesh, lambda *layouts: SAME)
    return lambda: jax.block_until_ready(program(weights, x))
