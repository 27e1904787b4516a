"""Host side: what one part of a soak found, and how that is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One part.

    compared: replies that were held against the plain server's. wrong: what was not as promised, in words.
    unchecked: what did not happen, so that nothing is shown about it. figures, hashes: for the receipt.
    """

    part: str
    compared: int
    wrong: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """RED, UNCHECKED or GREEN."""
        return "RED" if self.wrong else "UNCHECKED" if self.unchecked else "GREEN"


def show(finding: Finding) -> str:
    """The lines of a part."""
    lines = [f"{finding.word} {finding.part}: {finding.compared} replies compared"]
    lines += [
        f"  {word} {said}" for word, all_ in (("red", finding.wrong), ("unchecked", finding.unchecked)) for said in all_
    ]
    lines += [f"  {name} = {value}" for name, value in finding.figures.items()]
    return "\n".join(lines)
