"""Gated residual streams: what a block reads and how its output is written back."""

from pallas_kernels.hyper_connection.op import HyperWeights, grouped_rms, read, read_mixed, write

__all__ = ["HyperWeights", "grouped_rms", "read", "read_mixed", "write"]
