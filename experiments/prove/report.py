"""Host side: what a proof found, as a table for people and as JSON for programs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkpoints.commands import UsageError
from experiments.prove.claims import Result, Tally, Unchecked, green
from experiments.receipts import Origin, Receipt, make_receipt, slug


@dataclass(frozen=True)
class Proof:
    """One run. subject: model or address. facts: fingerprints and settings by name. hashes: of the references."""

    subject: str
    tallies: Sequence[Tally]
    results: Sequence[Result]
    unchecked: Sequence[Unchecked]
    seconds: float
    facts: Mapping[str, Any]
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def green(self) -> bool:
        """Whether nothing is unequal and nothing is unexpectedly unchecked."""
        return green(self.tallies, self.unchecked)


COLUMNS = ("claim", "cells run", "equal", "unequal", "unchecked", "first difference", "smallest top-2 margin")


def rows(proof: Proof) -> list[tuple[str, ...]]:
    """The table's cells as text, a row a claim."""
    return [
        (
            line.claim,
            str(line.cells),
            str(line.equal),
            str(line.unequal),
            str(line.unchecked),
            line.first or "-",
            f"{line.margin:.3g}" if math.isfinite(line.margin) else "-",
        )
        for line in proof.tallies
    ]


def remarks(proof: Proof) -> list[str]:
    """What stands below the table: everything unchecked by name, digests of the replies, the verdict."""
    lines = [f"UNCHECKED {u.what}: {u.why}" for u in proof.unchecked if u.expected]
    surprises = [u for line in proof.tallies for u in line.unexpected] + [u for u in proof.unchecked if not u.expected]
    lines += [
        f"UNEXPECTEDLY UNCHECKED {what}: {why}" for what, why in dict.fromkeys((u.what, u.why) for u in surprises)
    ]
    lines += [
        f"UNEQUAL {result.cell}: {result.error or result.differences[0]}" for result in proof.results if result.unequal
    ]
    lines += [f"replies, {sampling}: {digest}" for sampling, digest in proof.hashes.items()]
    lines += [f"replies are compared by {proof.facts['compared_by']}"] if "compared_by" in proof.facts else []
    cells = f"{len(proof.results)} cells in {proof.seconds:.0f} s"
    return [*lines, f"{'GREEN' if proof.green else 'RED'}: {proof.subject}, {cells}"]


def require_rich() -> None:
    """Raises UsageError where the table could not be printed, before there is anything to print."""
    try:
        import rich  # noqa: F401
    except ImportError:
        raise UsageError("the table needs rich: pip install -e '.[server]'") from None


def print_proof(proof: Proof) -> None:
    """Prints the table and the remarks."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS, title=f"{proof.subject}: every cell against the reference")
    for row in rows(proof):
        table.add_row(*row)
    console = Console(soft_wrap=False)
    console.print(table)
    for line in remarks(proof):
        console.print(line, markup=False, highlight=False)


def write_json(proof: Proof, path: Path) -> None:
    """Writes everything, numbers that are not finite as null."""
    value = {
        "subject": proof.subject,
        "green": proof.green,
        "seconds": proof.seconds,
        "facts": dict(proof.facts),
        "hashes": dict(proof.hashes),
        "claims": [asdict(line) for line in proof.tallies],
        "unchecked": [asdict(item) for item in proof.unchecked],
        "cells": [asdict(result) for result in proof.results],
    }
    path.write_text(json.dumps(_finite(value), indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def proof_receipt(origin: Origin, proof: Proof, device: str) -> Receipt:
    """The run as a receipt. Raises ReceiptError."""
    figures = {
        line.claim: {"cells": line.cells, "equal": line.equal, "unequal": line.unequal, "unchecked": line.unchecked}
        for line in proof.tallies
    }
    return make_receipt(
        origin,
        f"prove-{slug(Path(proof.subject).absolute().name)}",
        device,
        {"claims": figures, "green": proof.green, "cells": len(proof.results), "wall_s": round(proof.seconds, 1)},
        fingerprint=proof.facts,
        hashes=proof.hashes,
        margins={line.claim: line.margin for line in proof.tallies if math.isfinite(line.margin)},
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
