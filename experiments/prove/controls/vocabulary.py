"""Traced: wrong twins of what ranks tell each other about their slices of the vocabulary. Read next: draws.py."""

import jax.numpy as jnp

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.dealt import dealt_draws, dealt_logprobs
from fnx_jax.collectives import gather_columns
from fnx_jax.families.flash_next import shards
from fnx_jax.lanes import logprobs
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.vocabulary_sums import join_sums

BLOCK_SUMS = logprobs.block_sums


def own_total(slices: Slices, sums):
    """The masses of the own slice alone."""
    return sums


def last_rank_first(slices: Slices, scores_Bv):
    """Of the ranks whose best scores are equal, takes the last."""
    best_B1 = scores_Bv.max(axis=1, keepdims=True)
    ids_B1 = jnp.take(slices.ids()[0], scores_Bv.argmax(axis=1))[:, None]
    scores_BR, ids_BR = (gather_columns(values, slices.ranks)[:, ::-1] for values in (best_B1, ids_B1))
    return jnp.take_along_axis(ids_BR, scores_BR.argmax(axis=1)[:, None], axis=1)[:, 0]


def sum_of_the_slice(logits_Bv, ceiling_B):
    """One partial sum a slice instead of one a block."""
    return join_sums(BLOCK_SUMS(logits_Bv, ceiling_B))[:, None]


CONTROLS: tuple[Control, ...] = (
    planted(
        "nucleus_of_the_own_rank",
        "3.5",
        "a nucleus is cut by the mass of the rank's own slice",
        dealt_draws,
        Plant(Slices, "total", own_total),
    ),
    planted(
        "ties_by_rank",
        "3.3",
        "of ids with one score on several ranks the last rank's is drawn",
        dealt_draws,
        Plant(Slices, "first_largest", last_rank_first),
    ),
    planted(
        "partial_sums_joined_by_rank",
        "3.5",
        "a log-sum-exp adds what each rank's partial sums come to",
        dealt_logprobs,
        Plant(logprobs, "block_sums", sum_of_the_slice),
    ),
    planted(
        "vocabulary_cut_inside_blocks",
        "5",
        "the vocabulary is dealt by counts of ids, not by whole blocks of 128",
        dealt_logprobs,
        Plant(shards, "BLOCK", 10),
    ),
)
