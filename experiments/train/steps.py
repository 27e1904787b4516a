"""Traced: one step of training, of the network or of its draft head; equal settings share a compiled program.

Read next: run.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import PyTree

from experiments.train.losses import Batch, Learner, draft_loss, token_loss
from experiments.train.network import EVERY_PICK
from experiments.train.optimiser import Pace, optimiser
from fnx_jax.families.flash_next.config import FlashNextConfig


@struct.dataclass
class Training:
    """Where a phase stands. step: int32 [], how many are done. learner: what it moves. optimiser: its state."""

    step: jax.Array
    learner: PyTree
    optimiser: PyTree


Parts = dict[str, jax.Array]
"""What a loss is made of, by name."""


def begin(learner: PyTree, pace: Pace) -> Training:
    """A phase before its first step, placed as a restored one is, so that both run one program."""
    return jax.device_put(Training(jnp.int32(0), learner, optimiser(pace).init(learner)), jax.local_devices()[0])


@partial(jax.jit, static_argnames=("config", "pace"), donate_argnames="training")
def network_step(training: Training, batch: Batch, config: FlashNextConfig, pace: Pace) -> tuple[Training, Parts]:
    """A step of a `Learner`. The buffers of `training` are given up."""
    return _step(training, lambda learner: token_loss(learner, config, batch), pace)


@partial(jax.jit, static_argnames=("config", "pace", "depths"), donate_argnames="training")
def draft_step(
    training: Training, batch: Batch, fixed: Learner, config: FlashNextConfig, pace: Pace, depths: int
) -> tuple[Training, Parts]:
    """A step of the draft head (`MtpParams`), towards what the rest, `fixed`, gives. As `network_step` otherwise."""
    return _step(training, lambda mtp: draft_loss(mtp, fixed, config, batch, depths), pace)


@partial(jax.jit, static_argnames="config")
def token_parts(learner: Learner, batch: Batch, config: FlashNextConfig) -> Parts:
    """What the network's loss is made of, without a step and with every pick of an expert, as in serving."""
    return token_loss(learner, config, batch, EVERY_PICK)[1]


def _step(training: Training, loss: Callable[[Any], tuple[jax.Array, Parts]], pace: Pace) -> tuple[Training, Parts]:
    gradient, parts = jax.grad(loss, has_aux=True)(training.learner)
    updates, state = optimiser(pace).update(gradient, training.optimiser, training.learner)
    learner = optax.apply_updates(training.learner, updates)
    return Training(training.step + jnp.int32(1), learner, state), parts | {"norm": optax.tree.norm(gradient)}
