"""Host side: how long would a conversion of the full-size network take on an H200? An estimate, not a measurement.

    python -m experiments.bench.conversion --recipe=flash_next_4.05 --shared_scales --cpu_gops=73.6

Counted, from names and shapes: the rings that a conversion searches, and so the candidates that are weighed, 65536 at
each position, twice round (checkpoints/converter/searches.py). Measured: candidates a second of one core of this CPU,
by processor time, with the program that the H200 would run. Assumed: the H200 reaches the same share of its float32
arithmetic, --gpu_gops, as the core does of its own, --cpu_gops = GHz * lanes of a vector * vectors a cycle; that it
reads and writes no more than the tables of costs, at --gpu_gbps; and that a position costs --step_us beside that, as
each is launched alone. Hours are those of whichever of arithmetic and traffic takes longer, and of the launches.

Left out: reading and writing files, calibration, products with Hessians, rotations, all of which are small beside the
search. Compilation, too.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from checkpoints.architecture import configured_mtp_layers
from checkpoints.commands import UsageError, run
from checkpoints.converter.searches import PASSES, STATES, Searches, count_searches
from checkpoints.converter.units import network_units
from checkpoints.converter.widths import recipe_widths
from checkpoints.full_size import full_config
from checkpoints.inventory import Inventory
from checkpoints.naming import PUBLISHED_PREFIX, text_config
from checkpoints.recipe import read_recipe
from experiments.receipts import make_receipt, note_origin, write_receipt
from pallas_kernels.trellis_search import search_rings
from pallas_kernels.trellis_search.tuning import MANY

OPERATIONS = 6
"""Float32 operations for a candidate: subtract, square, add, compare, and two selections, of cost and of choice."""
EDGE_BYTES = 4 + 4 + 1
"""For an edge at a position: its cost read, its new cost and its choice written."""
VALUES = 256

FLAGS = flags.FlagValues()
flags.DEFINE_string("recipe", "flash_next_4.05", "Widths by name: a recipe, or a .toml file.", flag_values=FLAGS)
flags.DEFINE_bool("shared_scales", False, "As of the converter.", flag_values=FLAGS)
flags.DEFINE_integer("rings", 64, "Rings of a measurement.", 16, flag_values=FLAGS)
flags.DEFINE_integer("tries", 5, "Measurements, of which the fastest counts.", 1, flag_values=FLAGS)
flags.DEFINE_float("cpu_gops", 0, "Billion float32 operations a second of one core.", 0, flag_values=FLAGS)
flags.DEFINE_float("gpu_gops", 33500, "The same of the H200.", 1, flag_values=FLAGS)
flags.DEFINE_float("gpu_gbps", 4800, "Its memory's GB/s.", 1, flag_values=FLAGS)
flags.DEFINE_float("step_us", 10, "Microseconds that a position takes to launch.", 0, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


@dataclass(frozen=True)
class Device:
    """operations_per_s: float32, of which `share` is reached. bytes_per_s: of its memory. step_s: of a position."""

    operations_per_s: float
    share: float
    bytes_per_s: float
    step_s: float


@dataclass(frozen=True)
class Hours:
    """arithmetic, traffic: each alone. launches: of positions. total: the longer of the first two, and launches."""

    arithmetic: float
    traffic: float
    launches: float
    total: float


def hours_on(device: Device, searches: Searches) -> Hours:
    """Hours that a device with many lanes takes for one kind of rings, searched in blocks as large as it can."""
    arithmetic = OPERATIONS * searches.candidates / (device.operations_per_s * device.share)
    edges = STATES >> int(searches.bits)
    traffic = EDGE_BYTES * edges * searches.steps / device.bytes_per_s
    launches = -(-searches.rings // MANY.rings) * PASSES * searches.length * device.step_s
    total = max(arithmetic, traffic) + launches
    return Hours(*(seconds / 3600 for seconds in (arithmetic, traffic, launches, total)))


def full_size_searches(recipe_name: str, shared_scales: bool) -> list[Searches]:
    """What a conversion of the full-size network searches."""
    recipe, text = read_recipe(recipe_name), text_config(full_config())
    units = network_units(Inventory(PUBLISHED_PREFIX, text, configured_mtp_layers(text), {}, (), ()))
    return count_searches(units, recipe_widths(units, recipe), recipe.ngram_bits, shared_scales)


def candidates_per_s(bits: float, rings: int, tries: int) -> float:
    """Of one core, by processor time: the fastest of several searches of random rings."""
    target_TP = np.random.default_rng(0).standard_normal((rings, VALUES)).astype(np.float32)
    search_rings(target_TP, bits)
    seconds = []
    for _ in range(tries):
        before = time.process_time()
        search_rings(target_TP, bits)
        seconds.append(time.process_time() - before)
    return Searches("", rings, VALUES, bits).candidates / min(seconds)


def main(positional: list[str]) -> int:
    """Prints a line a kind and width, and the sum."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    if not FLAGS.cpu_gops:
        raise UsageError("--cpu_gops: GHz * float32 lanes of a vector * vectors a cycle of one core was wanted")
    origin = note_origin() if FLAGS.receipt else None
    searches = full_size_searches(FLAGS.recipe, FLAGS.shared_scales)
    rates = {bits: candidates_per_s(bits, FLAGS.rings, FLAGS.tries) for bits in sorted({s.bits for s in searches})}
    found = [_estimate(kind, rates[kind.bits]) for kind in searches]
    _print(found)
    if origin is not None:
        receipt = make_receipt(origin, "conversion", jax.devices()[0].device_kind, figures(found))
        print(f"receipt: {write_receipt(receipt)}")
    return 0


@dataclass(frozen=True)
class Estimate:
    """rate: candidates a second of one core here. share: of its arithmetic. core_hours: on it. h200: see Hours."""

    searches: Searches
    rate: float
    share: float
    core_hours: float
    h200: Hours


def _estimate(kind: Searches, rate: float) -> Estimate:
    share = OPERATIONS * rate / (FLAGS.cpu_gops * 1e9)
    device = Device(FLAGS.gpu_gops * 1e9, share, FLAGS.gpu_gbps * 1e9, FLAGS.step_us * 1e-6)
    return Estimate(kind, rate, share, kind.candidates / rate / 3600, hours_on(device, kind))


def figures(found: list[Estimate]) -> dict[str, Any]:
    """As JSON: every kind, and what all of them take."""
    rows = {f"{e.searches.what}, {e.searches.bits:g} bits": asdict(e) for e in found}
    whole = {"h200_hours_estimated": sum(e.h200.total for e in found), "core_hours": sum(e.core_hours for e in found)}
    return rows | whole | {"candidates": sum(e.searches.candidates for e in found)}


def _print(found: list[Estimate]) -> None:
    table = Table(title="a conversion of the full-size network; hours are estimates")
    for column in ("rings", "bits", "count", "candidates", "per s, a core", "share", "core h", "H200 h", "of launches"):
        table.add_column(column, justify="right")
    for e in found:
        kind = e.searches
        counted = (kind.what, f"{kind.bits:g}", f"{kind.rings:,}", f"{kind.candidates:.2e}")
        table.add_row(*counted, f"{e.rate:.2e}", f"{e.share:.0%}", *_hours(e.core_hours, e.h200.total, e.h200.launches))
    table.add_row("all", *[""] * 2, f"{sum(e.searches.candidates for e in found):.2e}", "", "", *_sum(found))
    Console(width=120).print(table)


def _sum(found: list[Estimate]) -> tuple[str, ...]:
    return _hours(*(sum(x) for x in zip(*((e.core_hours, e.h200.total, e.h200.launches) for e in found), strict=True)))


def _hours(*hours: float) -> tuple[str, ...]:
    return tuple(f"{value:,.1f}" for value in hours)


if __name__ == "__main__":
    run(main, FLAGS)
