"""Matmuls with weights stored [out, in], and the one dispatch over weight kinds."""

from pallas_kernels.dense_matmul.op import Selected, Weight, dense_matmul, features, leading_outputs, linear

__all__ = ["Selected", "Weight", "dense_matmul", "features", "leading_outputs", "linear"]
