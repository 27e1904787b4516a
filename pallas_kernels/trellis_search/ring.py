"""Host side: the shape of a ring of values that share 16-bit windows. Read next: viterbi.py."""

from dataclasses import dataclass

import numpy as np

from pallas_kernels.exl3.weight import HALF_WIDTHS, WIDTHS

WINDOW = 16
"""Bits of a state."""


@dataclass(frozen=True)
class Ring:
    """`length` values of `bits` each, read through a window of 16 bits that slides round a ring of bits.

    Position p brings D(p) new bits: `bits` where that is whole, else its floor at even p and its ceiling at odd p. The
    edge after p is what the states of p and p + 1 share, the low 16 - D(p + 1) bits of the former.
    """

    length: int
    bits: float

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS:
            raise ValueError(f"Ring: {self.bits} bits a value, wanted one of {WIDTHS}")
        if self.length % len(self.phases) or self.length * self.bits < WINDOW:
            raise ValueError(
                f"Ring: {self.length} values of {self.bits} bits, wanted an even number at half widths, "
                f"and {WINDOW} bits"
            )

    @property
    def phases(self) -> tuple[int, ...]:
        """New bits of the positions of one period: of any position, or of an even and an odd one."""
        low = int(self.bits)
        return (low, low + 1) if self.bits in HALF_WIDTHS else (low,)

    @property
    def middle(self) -> int:
        """Where the free pass starts: half way round, at the start of a period."""
        periods = self.length // len(self.phases)
        return periods // 2 * len(self.phases)

    @property
    def edges(self) -> int:
        """Edges before a position of the first phase, which has most of them."""
        return 1 << (WINDOW - self.phases[0])

    def new_bits(self, position: np.ndarray) -> np.ndarray:
        """D(p) of positions, which may run past the end of the ring."""
        return np.array(self.phases)[position % len(self.phases)]

    def closes(self, states: np.ndarray) -> np.ndarray:
        """Tells of each ring of states [..., length] whether all neighbours, the last and the first too, agree on the
        edge between them: bool [...]."""
        shift = self.new_bits(np.arange(self.length))
        state = np.asarray(states).astype(np.int64)
        shared = np.roll(state, 1, axis=-1) & ((1 << (WINDOW - shift)) - 1)
        return (state >> shift == shared).all(axis=-1)
