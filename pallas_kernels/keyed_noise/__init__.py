"""Gumbel noise that is a pure function of (seed, choice, position, token id)."""

from pallas_kernels.keyed_noise.op import gumbel_noise as gumbel_noise
from pallas_kernels.keyed_noise.op import seed_words as seed_words
