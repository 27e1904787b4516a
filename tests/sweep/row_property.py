"""The row rule as a property: a row's bits are its own, whoever shares the tile and wherever the row stands in it."""

import jax
import numpy as np

from tests.sweep.case import ROWS, Case, Tree, program, unequal


def broken(case: Case) -> list[str]:
    """Says in which ways another row reached a row: empty where the op keeps the rule.

    Rows move through every place of the tile; each stands among rows of NaN (integers of another tile, which are
    garbage but in range); and zeros fill the tile behind one and behind five rows.
    """
    tile, other = case.tile(0), case.tile(1)
    whole = _run(case, tile)
    found = []
    for shift in range(1, ROWS):
        moved = jax.tree.map(lambda leaf, s=shift: np.roll(leaf, s, axis=0), (tile, whole))
        found += ["place"] * bool(unequal(_run(case, moved[0]), moved[1]))
    for row in range(ROWS):
        among = _run(case, jax.tree.map(lambda leaf, bad, r=row: _only(leaf, bad, r), tile, other))
        found += ["company"] * bool(unequal(_rows(among, row, row + 1), _rows(whole, row, row + 1)))
    for live in (1, 5):
        filled = _run(case, jax.tree.map(lambda leaf, n=live: _filled(leaf, n), tile))
        found += ["padding"] * bool(unequal(_rows(filled, 0, live), _rows(whole, 0, live)))
    return sorted(set(found))


def _run(case: Case, tile: Tree) -> Tree:
    return jax.device_get(program(case)(tile, case.shared))


def _rows(tree: Tree, start: int, stop: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def _only(leaf: np.ndarray, other: np.ndarray, row: int) -> np.ndarray:
    out = np.full_like(leaf, np.nan) if leaf.dtype == np.float32 else other.copy()
    out[row] = leaf[row]
    return out


def _filled(leaf: np.ndarray, live: int) -> np.ndarray:
    out = np.zeros_like(leaf)
    out[:live] = leaf[:live]
    return out
