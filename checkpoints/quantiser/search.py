"""Host side: the one place where the quantiser uses a device. Read next: pallas_kernels/trellis_search/op.py."""

import numpy as np
from jaxtyping import Float32, UInt16


def search(
    target_TP: Float32[np.ndarray, "T P"], bits: float, codebook: str
) -> tuple[UInt16[np.ndarray, "T P"], Float32[np.ndarray, "T P"]]:
    """States of closed rings near the targets, and the values that they decode to."""
    from pallas_kernels.exl3.codebook import codebook_table
    from pallas_kernels.trellis_search import search_rings

    states_TP = search_rings(target_TP, bits, codebook)
    return states_TP, codebook_table(codebook).astype(np.float32)[states_TP]
