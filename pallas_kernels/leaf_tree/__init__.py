"""The sum over a row's experts, in an order that knows no device and no schedule."""

from pallas_kernels.leaf_tree.op import balanced_sum, combine, leaf_sums

__all__ = ["balanced_sum", "combine", "leaf_sums"]
