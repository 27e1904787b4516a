"""Mixes an n-gram embedding into the residual streams."""

from pallas_kernels.ngram_mix.op import NgramWeights, ngram_mix

__all__ = ["NgramWeights", "ngram_mix"]
