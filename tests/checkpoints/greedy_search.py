"""A search that takes the nearest value at every position, for tests that need layers quickly and not well."""

import numpy as np

from pallas_kernels.exl3.codebook import codebook_table

WINDOW = 16


def greedy_search(target_TP: np.ndarray, bits: float, codebook: str) -> tuple[np.ndarray, np.ndarray]:
    """Stands in for quantiser.search.search: closed rings, a few values of each whatever comes."""
    values = codebook_table(codebook).astype(np.float32)
    rings, length = target_TP.shape
    new = np.diff(np.floor((np.arange(length) + 1) * bits).astype(int), prepend=0)
    states = np.zeros((rings, length), np.int64)
    for p in range(length):
        options = (states[:, p - 1, None] << new[p] | np.arange(2 ** new[p])) & 0xFFFF
        best = np.abs(values[options] - target_TP[:, p, None]).argmin(1)
        states[:, p] = options[np.arange(rings), best]
    for p in range(-(-WINDOW // int(bits))):
        states[:, p] = (states[:, p - 1] << new[p] | states[:, p] & (2 ** new[p] - 1)) & 0xFFFF
    return states.astype(np.uint16), values[states]
