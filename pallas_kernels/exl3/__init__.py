"""EXL3 linear layers: the format's weights, their decoding, and y = linear(x, weight).

Read next: op.py (the layer), weight.py (what a layer holds), trellis.py (how bits become values).
"""

from pallas_kernels.exl3.op import linear
from pallas_kernels.exl3.trellis import decode, decode_numpy, decoded
from pallas_kernels.exl3.weight import DecodedWeight, Exl3Weight, from_arrays

__all__ = ["DecodedWeight", "Exl3Weight", "decode", "decode_numpy", "decoded", "from_arrays", "linear"]
