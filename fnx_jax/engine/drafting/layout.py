"""Host side: cuts windows to the rows of a round and to tiles. Read next: policy.py."""

from collections.abc import Sequence
from dataclasses import replace

from fnx_jax.engine.drafting.settings import WINDOW_ROWS
from fnx_jax.engine.drafting.streams import Window


def lay_out(
    offers: Sequence[Window], shares: Sequence[int], rooms: Sequence[int], rows: int, row_tile: int
) -> list[Window]:
    """Gives each offer its share of rows, as far as they go; every stream is sure of one row.

    Where rows are short, copies give way first, of the youngest stream first, then the longest chains. A window that
    would cross a tile border ends there.

    Args: shares: drafts to test. rooms: tokens a stream may still commit. rows: of the round, at least one a stream.
    """
    counts = _fit(offers, shares, rows - len(offers))
    windows, used = [], 0
    for after, offer, count, room in zip(reversed(range(len(offers))), offers, counts, rooms, strict=True):
        most = min(row_tile - used % row_tile, rows - used - after, room, WINDOW_ROWS) - 1
        windows.append(replace(offer, tested=min(count, most)))
        used += 1 + windows[-1].tested
    return windows


def _fit(offers: Sequence[Window], shares: Sequence[int], spare: int) -> list[int]:
    counts = list(shares)
    for i in sorted(range(len(offers)), key=lambda i: -offers[i].order):
        if offers[i].source == "copy":
            counts[i] -= min(counts[i], max(0, sum(counts) - spare))
    while sum(counts) > spare:
        counts[counts.index(max(counts))] -= 1
    return counts
