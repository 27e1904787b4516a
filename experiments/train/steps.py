"""Traced: one step of training, compiled once for the network and once for its draft head. Read next: run.py."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import PyTree

from experiments.train.losses import Batch, Learner, draft_loss, token_loss
from fnx_jax.families.flash_next.config import FlashNextConfig


@struct.dataclass
class Training:
    """Where a phase stands. step: int32 [], how many are done. learner: what it moves. optimiser: its state."""

    step: jax.Array
    learner: PyTree
    optimiser: PyTree


Step = Callable[[Training, Batch], tuple[Training, dict[str, jax.Array]]]
"""Its first argument's buffers are given up."""


def begin(learner: PyTree, rule: optax.GradientTransformation) -> Training:
    """A phase before its first step."""
    return Training(jnp.int32(0), learner, rule.init(learner))


def network_step(config: FlashNextConfig, rule: optax.GradientTransformation) -> Step:
    """A step of a `Learner`."""
    return jax.jit(_step(lambda learner, batch: token_loss(learner, config, batch), rule), donate_argnums=0)


def draft_step(config: FlashNextConfig, rule: optax.GradientTransformation, depths: int, fixed: Learner) -> Step:
    """A step of the draft head (`MtpParams`), towards what the rest, which stays fixed, gives."""

    def step(training: Training, fixed: Learner, batch: Batch) -> tuple[Training, dict[str, jax.Array]]:
        return _step(lambda mtp, batch: draft_loss(mtp, fixed, config, batch, depths), rule)(training, batch)

    jitted = jax.jit(step, donate_argnums=0)
    return lambda training, batch: jitted(training, fixed, batch)


def _step(loss: Callable[[Any, Batch], Any], rule: optax.GradientTransformation) -> Step:
    def step(training: Training, batch: Batch) -> tuple[Training, dict[str, jax.Array]]:
        gradient, parts = jax.grad(loss, has_aux=True)(training.learner, batch)
        updates, state = rule.update(gradient, training.optimiser, training.learner)
        learner = optax.apply_updates(training.learner, updates)
        return Training(training.step + jnp.int32(1), learner, state), parts | {"norm": optax.tree.norm(gradient)}

    return step
