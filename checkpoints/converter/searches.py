"""Host side: how much searching a conversion asks for, counted from names and shapes alone. Read next: jobs.py.

All but a thousandth of a conversion's arithmetic is in these searches: products with Hessians are K operations a weight
for K inputs, the search itself weighs 2 * 65536 candidates for each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoints.architecture import Table
from checkpoints.converter.jobs import unit_jobs
from checkpoints.converter.units import Unit
from checkpoints.converter.widths import stored_weights
from checkpoints.exl3 import BLOCK, TILE
from checkpoints.quantiser.scale import searched_for_scale
from checkpoints.quantiser.tiles import VALUES

STATES = 1 << 16
PASSES = 2


@dataclass(frozen=True)
class Searches:
    """Rings of one kind that a conversion searches.

    what: "layers", "scales" (of those, to find the codebook's factor) or "n-gram rows". rings: how many. length: values
    of each. bits: a value.
    """

    what: str
    rings: int
    length: int
    bits: float

    @property
    def steps(self) -> int:
        """Positions visited: every ring is gone round twice."""
        return PASSES * self.length * self.rings

    @property
    def candidates(self) -> int:
        """States weighed: all of them at every position, whatever the width."""
        return STATES * self.steps


def count_searches(
    units: Iterable[Unit], widths: Mapping[str, float], ngram_bits: int, shared_scales: bool
) -> list[Searches]:
    """Counts what `quantise` searches without Hessians.

    Args:
      units: of a network. widths: bits by module name. ngram_bits: 0 keeps tables plain. shared_scales: the factor is
        searched once for each width.
    Returns: one entry for each kind and width that occurs, in that order.
    """
    rings: dict[tuple[str, int, float], int] = {}

    def add(what: str, length: int, bits: float, count: int) -> None:
        rings[what, length, bits] = rings.get((what, length, bits), 0) + count

    met: set[float] = set()
    for unit in units:
        for job in unit_jobs(unit, widths):
            for linear in job.linears:
                add("layers", VALUES, job.bits, stored_weights(linear.shape) // VALUES)
            scaled = job.linears[: job.bits not in met] if shared_scales else job.linears
            met.add(job.bits)
            for linear in scaled:
                outputs, inputs = (-(-size // BLOCK) * BLOCK // TILE for size in linear.shape)
                add("scales", VALUES, job.bits, searched_for_scale(inputs, outputs))
        for table in (part for part in unit.parts if isinstance(part, Table) and ngram_bits):
            add("n-gram rows", table.row_dim, ngram_bits, table.rows)
    return [Searches(what, count, length, bits) for (what, length, bits), count in sorted(rings.items())]
