"""Host side: a kept state off the devices. Read next: host.py, disk.py, files.py."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fnx_jax.engine.prompt_cache.entries import Kind
from fnx_jax.engine.steps import Held


@dataclass(frozen=True, eq=False)
class Away:
    """tokens, kind: as in Entry. held: what Steps.spill returned."""

    tokens: np.ndarray
    kind: Kind
    held: Held

    @cached_property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return sum(array.nbytes for array in self.held)
