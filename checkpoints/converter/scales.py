"""Host side: the codebook's factor of each width, where all linears of a width share one. Read next: quantise.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpoints.write import write_json


@dataclass(frozen=True)
class SharedScales:
    """Factors by width, kept in a file: a run that is taken up goes on with those that were found.

    file: of the work, which appears with the first factor.
    """

    file: Path

    def get(self, bits: float, find: Callable[[], float]) -> float:
        """The factor of a width, searched once."""
        width = str(float(bits))  # 3 and 3.0 are one
        known = json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}
        if width not in known:
            known[width] = find()
            write_json(self.file, known)
        return known[width]
