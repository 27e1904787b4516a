"""Host side: which lanes share a tile, where every tile but the last is to be full. Read next: allocate.py."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fnx_jax.engine.drafting.settings import WINDOW_ROWS


@dataclass(frozen=True)
class Tiling:
    """tile_of: by lane. rooms: rows of each tile that its lanes do not have yet; tiles in the order of their rows."""

    tile_of: tuple[int, ...]
    rooms: tuple[int, ...]

    @property
    def last(self) -> int:
        """The tile that need not be full."""
        return len(self.rooms) - 1

    @property
    def order(self) -> tuple[int, ...]:
        """Lanes in the order of their rows."""
        return tuple(sorted(range(len(self.tile_of)), key=self.tile_of.__getitem__))


def tilings(wants: Sequence[float], rows: Sequence[int]) -> Iterator[Tiling]:
    """Ways to put lanes into tiles, with few tiles first.

    Args: wants: by lane, what it could make of many rows. rows: that it has already.
    """
    eager = sorted(range(len(wants)), key=lambda lane: -wants[lane])
    for tiles in range(-(-sum(rows) // WINDOW_ROWS), len(wants) + 1):
        dealt = _dealt(eager, wants, rows, tiles)
        if dealt is not None:
            yield dealt


def _dealt(eager: Sequence[int], wants: Sequence[float], rows: Sequence[int], tiles: int) -> Tiling | None:
    """Lane by lane into the tile whose lanes want least; None where one fits nowhere."""
    sums, rooms, tile_of = [0.0] * tiles, [WINDOW_ROWS] * tiles, [0] * len(wants)
    for lane in eager:
        free = [tile for tile in range(tiles) if rooms[tile] >= rows[lane]]
        if not free:
            return None
        tile = min(free, key=lambda tile: (sums[tile], tile))
        tile_of[lane] = tile
        sums[tile] += 1 + wants[lane]
        rooms[tile] -= rows[lane]
    by_want = sorted(range(tiles), key=lambda tile: -sums[tile])
    place = {tile: index for index, tile in enumerate(by_want)}
    return Tiling(tuple(place[tile] for tile in tile_of), tuple(rooms[tile] for tile in by_want))
