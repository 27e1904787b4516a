"""Host side: tables of a run, and its figures as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.bench.concurrent.compare import EVERY, WAVES, Ratio, levels, others, unmet
from experiments.bench.concurrent.measure import Block, Measured
from experiments.bench.concurrent.plan import DRAFT, Cell, Plan
from experiments.bench.concurrent.rates import Figures, figures_of
from experiments.receipts import slug

WIDTH = 140
CAPTION = (
    "prefill: until a wave's last first piece; decode: while all decode; between: gaps, shared by a piece's tokens"
)


def collect(done: Sequence[Block]) -> dict[tuple[Cell, str], Figures]:
    """Figures by cell and arm, those of all blocks together; cells in order, their arms beside each other."""
    parts: dict[tuple[Cell, str], list[Measured]] = {}
    for cell in dict.fromkeys(cell for block in done for cell in block.cells):
        for block in done:
            if cell in block.cells:
                parts.setdefault((cell, block.arm), []).append(block.cells[cell])
    return {key: figures_of(measured) for key, measured in parts.items()}


def measurements(found: Mapping[tuple[Cell, str], Figures], hashes: Mapping[str, str]) -> Table:
    """A line a cell and arm."""
    table = Table(title="tokens a second and milliseconds, as clients saw them", caption=CAPTION, box=None)
    for name in ("workload", "sampling", "level", "arm"):
        table.add_column(name)
    for name in (
        "prefill",
        "decode",
        "first",
        "p90",
        "between",
        "p90",
        "accepted",
        "tokens",
        "a round",
        "tokens' digest",
    ):
        table.add_column(name, justify="right")
    for (cell, arm), row in found.items():
        table.add_row(
            cell.workload,
            cell.sampling,
            cell.level,
            arm,
            _number(row.prefill.tok_s, 0),
            _number(row.decode.tok_s, 1),
            *_waits(row.ttft_ms),
            *_waits(row.itl_ms),
            "-" if row.acceptance is None else f"{row.accepted}/{row.drafted}",
            str(row.tokens),
            _number(row.tokens / row.rounds if row.rounds else None, 2),
            hashes[f"{cell.workload}, {cell.sampling}"][:8],
        )
    return table


def comparisons(plan: Plan, found: Sequence[Ratio]) -> Table:
    """A line a workload and sampling, a column a level and arm; above them, all together."""
    columns = [(level, against) for level in levels(plan) for against in others(plan)]
    table = Table(title=f"decode tok/s of {DRAFT} over those of other arms, medians of pairs", box=None)
    table.add_column("")
    for level, against in columns:
        table.add_column(f"{level}\n{against}", justify="right")
    by_case: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for r in found:
        by_case.setdefault((r.workload, r.sampling), {})[r.level, r.against] = r.ratio
    for case, row in by_case.items():
        name = {EVERY: "all together", WAVES: WAVES}.get(case[1], ", ".join(case))
        table.add_row(name, *(_number(row.get(column), 3) for column in columns))
    return table


def verdict(found: Sequence[Ratio], gate: float, left: Sequence[str]) -> str:
    """What the gate says, and what is unchecked, in lines."""
    whole = [ratio for ratio in found if ratio.whole]
    lines = [f"UNCHECKED: {what}" for what in left]
    for ratio in unmet(found, gate):
        pairs = ", ".join(f"{pair:.3f}" for pair in ratio.pairs)
        lines.append(f"below the gate: level {ratio.level} over {ratio.against}: {ratio.ratio:.3f} (pairs {pairs})")
    if whole and gate:
        least = min(whole, key=lambda ratio: ratio.ratio)
        lines.append(
            f"gate {gate:g}: {len(whole) - len(unmet(found, gate))} of {len(whole)} levels and arms hold; "
            f"least {least.ratio:.3f}, level {least.level} over {least.against}"
        )
    return "\n".join(lines)


def show(plan: Plan, done: Sequence[Block], found: Sequence[Ratio], hashes: Mapping[str, str]) -> None:
    """Prints both tables."""
    console = Console(width=WIDTH)
    console.print(measurements(collect(done), hashes))
    if found:
        console.print()
        console.print(comparisons(plan, found))


def figures(
    plan: Plan, done: Sequence[Block], found: Sequence[Ratio], gate: float, left: Sequence[str]
) -> dict[str, Any]:
    """Those of a receipt."""
    whole = [ratio for ratio in found if ratio.whole]
    return {
        "plan": asdict(plan),
        "order": [block.arm for block in done],
        "gate": gate,
        "judged": len(whole),
        "held": len(whole) - len(unmet(found, gate)),
        "least_ratio": min((ratio.ratio for ratio in whole), default=None),
        "ratios": {f"{r.level} over {r.against}, {r.workload} {r.sampling}": _ratio(r) for r in found},
        "cells": {slug(f"{arm} {cell}"): _cell(row) for (cell, arm), row in collect(done).items()},
        "compilations": [block.compilations for block in done],
        "unchecked": list(left),
    }


def _ratio(ratio: Ratio) -> dict[str, Any]:
    return {"median": ratio.ratio, "pairs": list(ratio.pairs)}


def _cell(row: Figures) -> dict[str, Any]:
    return {
        "prefill_tok_s": row.prefill.tok_s,
        "decode_tok_s": row.decode.tok_s,
        "wave_tok_s": row.wave.tok_s,
        "ttft_ms_median_p90": row.ttft_ms,
        "itl_ms_median_p90": row.itl_ms,
        "drafted": row.drafted,
        "accepted": row.accepted,
        "tokens": row.tokens,
        "rounds": row.rounds,
    }


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _waits(spread: tuple[float, float] | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (f"{spread[0]:.1f}", f"{spread[1]:.1f}")
