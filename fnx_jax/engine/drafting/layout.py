"""Host side: cuts windows to the rows of a round and to tiles. Read next: policy.py."""

from collections.abc import Sequence
from dataclasses import replace

from fnx_jax.engine.drafting.settings import WINDOW_ROWS
from fnx_jax.engine.drafting.streams import Window


def lay_out(
    offers: Sequence[Window],
    shares: Sequence[int],
    rooms: Sequence[int],
    rows: int,
    row_tile: int,
    order: Sequence[int] | None = None,
) -> list[Window]:
    """Gives each offer its share of rows, as far as they go; every stream is sure of one row.

    Where rows are short, copies give way first, of the youngest stream first, then the longest chains. A window that
    would cross a tile border ends there; what it loses goes to those after it.

    Args: shares: drafts to test. rooms: tokens a stream may still commit. rows: of the round, at least one a stream.
        order: of the offers; None for one that wastes little.
    Returns: the windows in the order of their rows.
    """
    counts = _fit(offers, shares, rows - len(offers))
    windows, used, lost = [], 0, 0
    for after, i in zip(reversed(range(len(offers))), order or _order(counts, row_tile), strict=True):
        most = min(row_tile - used % row_tile, rows - used - after, rooms[i], WINDOW_ROWS) - 1
        more = min(lost, len(offers[i].offered) - counts[i]) if counts[i] else 0
        tested = min(counts[i] + more, most)
        lost += counts[i] - tested
        windows.append(replace(offers[i], tested=tested))
        used += 1 + tested
    return windows


def _order(counts: Sequence[int], row_tile: int) -> list[int]:
    """As they stand where one tile holds them; else the longest begins a tile, and what fits best follows."""
    if sum(counts) + len(counts) <= row_tile:
        return list(range(len(counts)))
    left, order, used = sorted(range(len(counts)), key=lambda i: -counts[i]), [], 0
    while left:
        room = row_tile - used % row_tile
        chosen = left[0] if room == row_tile else min(left, key=lambda i: abs(1 + counts[i] - room))
        left.remove(chosen)
        order.append(chosen)
        used += min(1 + counts[chosen], room)
    return order


def _fit(offers: Sequence[Window], shares: Sequence[int], spare: int) -> list[int]:
    counts = list(shares)
    for i in sorted(range(len(offers)), key=lambda i: -offers[i].order):
        if offers[i].source == "copy":
            counts[i] -= min(counts[i], max(0, sum(counts) - spare))
    while sum(counts) > spare:
        counts[counts.index(max(counts))] -= 1
    return counts
