"""Rotary position embedding."""

from pallas_kernels.rope.op import inverse_frequencies, rotate

__all__ = ["inverse_frequencies", "rotate"]
