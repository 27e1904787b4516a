"""Host side: the one factor that brings a matrix to the size at which the codebook serves it best. Next: ldlq.py."""

import numpy as np
from jaxtyping import Float32

from checkpoints.quantiser.search import search
from checkpoints.quantiser.tiles import VALUES

_COARSE = np.arange(0.1, 2.0, 0.2)
_FINE_STEP, _FINE = 0.075, np.arange(-2, 3)
_EVERY = 3
_GROWTH = {1: 1.08, 1.5: 1.035, 2: 1.018, 2.5: 1.009, 3: 1.004}
"""How much the errors fed back to later tiles make them grow, by width."""


def find_scale(tiles: Float32[np.ndarray, "X Y 256"], bits: float, codebook: str, fed_back: bool) -> float:
    """The factor s of least mean (q(s t) / s - t)^2 over sampled tiles t.

    A coarse grid on every third sample, a fine one around its best on all of them, and a parabola through the best.
    `fed_back` says that the errors of some tiles will be added to others.
    """
    sample_TP = sample_tiles(tiles)
    if fed_back:
        sample_TP = sample_TP * np.float32(_GROWTH.get(bits, 1))
    coarse = _COARSE[np.argmin(_errors(sample_TP[::_EVERY], _COARSE, bits, codebook))]
    fine = max(coarse, (1 - _FINE[0]) * _FINE_STEP) + _FINE_STEP * _FINE
    errors = _errors(sample_TP, fine, bits, codebook)
    best = int(np.clip(np.argmin(errors), 1, len(fine) - 2))
    return float(fine[best] + _FINE_STEP * _lowest(errors[best - 1 : best + 2]))


def searched_for_scale(rows: int, columns: int) -> int:
    """Tiles that `find_scale` searches, again and again, for a matrix of so many rows and columns of tiles."""
    longest = max(rows, columns)
    samples = min(rows * columns, 3 * longest + 2 * _extreme(longest))
    return len(_COARSE) * -(-samples // _EVERY) + len(_FINE) * samples


def sample_tiles(tiles: Float32[np.ndarray, "X Y 256"]) -> Float32[np.ndarray, "T 256"]:
    """Three wrapped diagonals of tiles, the loudest and the quietest ones; all tiles where there are no more."""
    rows, columns = tiles.shape[:2]
    longest = max(rows, columns)
    extreme = _extreme(longest)
    flat = tiles.reshape(-1, VALUES)
    if len(flat) <= 3 * longest + 2 * extreme:
        return flat
    i = np.arange(longest)
    diagonals = [i % rows * columns + (i + shift) % columns for shift in range(3)]
    rows_of_tiles = tiles.reshape(rows, columns, VALUES)
    sizes = [np.square(row, dtype=np.float64).sum(axis=1) for row in rows_of_tiles]
    by_size = np.argsort(np.concatenate(sizes), kind="stable")
    return flat[np.concatenate([*diagonals, by_size[: -extreme - 1 : -1], by_size[:extreme]])]


def _extreme(longest: int) -> int:
    return max(8, 3 * longest)


def _errors(sample_TP: np.ndarray, scales: np.ndarray, bits: float, codebook: str) -> np.ndarray:
    scale = scales.astype(np.float32)[:, None, None]
    _, found = search((sample_TP * scale).reshape(-1, VALUES), bits, codebook)
    return np.mean(np.square(found.reshape(-1, *sample_TP.shape) / scale - sample_TP, dtype=np.float64), axis=(1, 2))


def _lowest(errors: np.ndarray) -> float:
    """Where a parabola through three points, one step apart, is lowest: within half a step of the middle one."""
    left, middle, right = errors
    bend = left - 2 * middle + right
    return float(np.clip((left - right) / (2 * bend), -0.5, 0.5)) if bend > 0 else 0.0
