"""Prints what a checkpoint holds, from its headers alone: parts, counts, shapes, widths, bytes, and what is odd.

    python -m checkpoints.inspect PATH [--json]

PATH is a folder or one safetensors file. Host side. Read next: report.py.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod

from absl import flags

from checkpoints.commands import one_path, run
from checkpoints.families import Family
from checkpoints.report import Report, report
from checkpoints.store import open_store

FLAGS = flags.FlagValues()
JSON = flags.DEFINE_bool("json", False, "print one JSON object instead of text", flag_values=FLAGS)

_HEADINGS = ("part", "layers", "plain", "shapes [out x in]", "bits", "codebook or dtype", "bytes", "bits/weight")
_SHAPES_SHOWN = 3


def main(positional: list[str]) -> None:
    """Prints the report of one checkpoint."""
    with open_store(one_path(positional, "checkpoint to inspect")) as store:
        found = report(store)
    print(json.dumps(asdict(found), indent=1) if JSON.value else "\n".join(lines(found)))


def lines(found: Report) -> Iterator[str]:
    """Yields the report as text."""
    yield f"checkpoint    {found.path}"
    yield f"architecture  {found.architecture or 'no config.json'}, {found.naming}"
    yield f"size          {found.tensors:,} tensors, {found.nbytes:,} bytes ({found.disk_bytes:,} on disk)"
    if found.average_bits is not None:
        yield f"average       {found.average_bits:.3f} bits a weight in the text model's quantised layers"
    if found.quantization:
        yield f"config        {_settings(found.quantization)}"
    yield f"licence       {found.licence or 'none found'}"
    yield f"digest        {found.digest}"
    yield ""
    yield from table([_HEADINGS, *(_row(family) for family in found.families)], left=(0, 3, 4, 5))
    yield ""
    plain = (f"{code} {entry['tensors']:,} tensors, {entry['nbytes']:,} bytes" for code, entry in found.dtypes.items())
    yield f"plain tensors: {'; '.join(plain) or 'none'}"
    yield f"tensors outside the index: {found.outside_index:,}"
    for file in found.files:
        yield f"  {file.nbytes:>17,}  {file.tensors:>7,} tensors  {file.name}{'' if file.indexed else '  (side file)'}"
    for name in found.ignored:
        yield f"  ignored: {name}"
    yield ""
    yield from (f"odd: {line}" for line in found.odd or ["nothing"])


def table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    """Yields rows of cells in aligned columns, those in `left` to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _row(family: Family) -> tuple[str, ...]:
    return (
        family.name,
        f"{family.quantised:,}" if family.quantised else "-",
        f"{family.plain:,}" if family.plain else "-",
        _shapes(family.shapes),
        _histogram(family.bits),
        " ".join(sorted(family.codebooks.keys() | family.dtypes.keys())),
        f"{family.nbytes:,}",
        f"{8 * family.nbytes / family.values:.3f}" if family.values else "-",
    )


def _shapes(shapes: dict[str, int]) -> str:
    """The shapes that hold most values, and how many others there are."""
    shown = sorted(shapes, key=lambda shape: -shapes[shape] * prod(map(int, shape.split("x"))))[:_SHAPES_SHOWN]
    return ", ".join(shown) + (f" and {len(shapes) - len(shown)} more" if len(shapes) > len(shown) else "")


def _histogram(bits: dict[float, int]) -> str:
    """`4` where all layers agree, else `4 (15,360) 5 (9,216)`."""
    if len(bits) <= 1:
        return "".join(f"{width:g}" for width in bits) or "-"
    return " ".join(f"{width:g} ({count:,})" for width, count in sorted(bits.items()))


def _settings(quantization: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in quantization.items() if isinstance(value, str | int | float))


if __name__ == "__main__":
    run(main, FLAGS)
