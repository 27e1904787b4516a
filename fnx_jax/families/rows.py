"""Traced: one tile of rows, as every family's forward pass takes it."""

from typing import Any

from flax import struct

from pallas_kernels.gated_delta import RowPlaces


@struct.dataclass
class Rows:
    """token_B int32; places: where each row belongs; ngram_BLE float32, one n-gram embedding a layer that takes one."""

    token_B: Any
    places: RowPlaces
    ngram_BLE: Any
