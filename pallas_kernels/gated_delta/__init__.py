"""Gated DeltaNet over rows of several lanes, its state committed by replay."""

from pallas_kernels.gated_delta.op import DeltaSizes, DeltaState, DeltaWeights, fold, gated_delta_rows
from pallas_kernels.gated_delta.rows import RowPlaces

__all__ = ["DeltaSizes", "DeltaState", "DeltaWeights", "RowPlaces", "fold", "gated_delta_rows"]
