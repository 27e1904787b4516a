"""Routed experts: rows grouped by expert, weights read through the line map."""

from pallas_kernels.expert_matmul.op import ExpertLines, LineMap, Pools, expert_matmul, resident_map, take_line

__all__ = ["ExpertLines", "LineMap", "Pools", "expert_matmul", "resident_map", "take_line"]
