"""Host side: which forms plain code takes at a number of rows: each part alone, in every form, the fastest kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.interleave import fastest
from experiments.bench.plain.delta import walked
from experiments.bench.plain.experts import moe
from experiments.bench.plain.forms import Forms
from fnx_jax import Model
from fnx_jax.families.flash_next.sequence.delta_rule import RuleInputs
from fnx_jax.mesh import SAME, on_ranks

HEIGHTS = (1, 2, 8, 16, 32)
CHUNKS = (0, 64)


def tree_for(forms: Forms, trees: Sequence[Any]) -> Any:
    """Of two trees, expert pools as their bits and as they are, the one that suits the forms: lines or whole pools."""
    return trees[forms.experts == "dense"]


def choose(model: Model, trees: Sequence[Any], rows: int, prompt: bool, sums: bool) -> Forms:
    """Times experts, and for prompts the recurrence, on the first layer's weights. trees: as in tree_for."""
    device = model.steps.device
    base = Forms(model.config, device.shards, "sorted", sums=sums)
    tried = [replace(base, height=height) for height in HEIGHTS if height <= rows]
    tried += [replace(base, experts="dense"), *([] if prompt else [replace(base, experts="gather")])]
    x = np.random.default_rng(0).standard_normal((rows, model.config.hidden), np.float32)
    chosen = tried[fastest([_experts(forms, device.mesh, tree_for(forms, trees), x) for forms in tried])]
    if not prompt:
        return chosen
    chunks = [replace(chosen, chunk=chunk) for chunk in CHUNKS]
    return chunks[fastest([_rule(forms, rows) for forms in chunks])]


def _experts(forms: Forms, mesh: Any, params: Any, x: np.ndarray) -> Callable[[], object]:
    program = on_ranks(lambda weights, x: moe(x, weights, forms), mesh, lambda *layouts: SAME)
    return lambda: jax.block_until_ready(program(params.layers[0].moe, x))


def _rule(forms: Forms, rows: int) -> Callable[[], object]:
    sizes, rng = forms.delta, np.random.default_rng(0)
    heads = lambda *size: jnp.asarray(rng.standard_normal((rows, sizes.value_heads, *size), np.float32))  # noqa: E731
    inputs = RuleInputs(
        q=heads(sizes.key_size),
        k=heads(sizes.key_size) / sizes.key_size,
        v=heads(sizes.value_size),
        beta=jax.nn.sigmoid(heads()),
        log_decay=-jax.nn.sigmoid(heads()),
    )
    program = jax.jit(lambda inputs: walked(inputs, forms))
    return lambda: jax.block_until_ready(program(inputs))
