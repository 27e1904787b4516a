"""Host side: what does exactness cost? The row programs of serving against plain jnp at natural shapes.

    python -m experiments.bench.exactness --receipt

Same weights, same rows, same process and backend flags: one row of each of 1, 4 and 16 lanes with some context behind
them, prompts of 256 and 512 rows, on one and on two devices; from tokens to logits. The plain network (plain/) is
written in several forms, of which each cell takes the fastest. Times are of a call, interleaved A B B A; read the
ratios. Beside them, the matmuls with weights alone: as the row programs shape them, and as bare `jnp.dot`s. Read next:
subjects.py, plain/network.py.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags, logging
from rich.console import Console
from rich.table import Table

import fnx_jax
from checkpoints.commands import DEMO, UsageError, run
from experiments.bench.choose import choose, tree_for
from experiments.bench.interleave import Compared, compare
from experiments.bench.matmuls import bare_matmuls, row_matmuls
from experiments.bench.plain.weights import can_split, split_inputs
from experiments.bench.subjects import Plain, Served, Subject
from experiments.bench.synthetic import write_checkpoint
from experiments.receipts import make_receipt, note_origin, write_receipt

CELLS = ("decode_1", "decode_4", "decode_16", "prompt_256", "prompt_512")
CONTEXT_ROWS, LANES, CONTEXT, REACH = 96, 16, 1024, 512
MOST_REPEATS = (REACH - CONTEXT_ROWS) // 4 - 2

FLAGS = flags.FlagValues()
flags.DEFINE_list("model", ["synthetic", "demo"], "Folders, `demo`, or `synthetic`, a random one.", flag_values=FLAGS)
flags.DEFINE_list("tp", ["1", "2"], "Numbers of devices.", flag_values=FLAGS)
flags.DEFINE_multi_enum("cell", list(CELLS), CELLS, "A cell to measure; may be repeated.", flag_values=FLAGS)
flags.DEFINE_integer("repeats", 12, "Times A B B A; prompts take a quarter.", 1, MOST_REPEATS, flag_values=FLAGS)
flags.DEFINE_string("compilation_cache_dir", "", "Folder that keeps compiled programs.", flag_values=FLAGS)
flags.DEFINE_string("out", "", "JSON file to write, cell by cell.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


@dataclass(frozen=True)
class Cell:
    """A cell's result. forms: those that plain took. agreement: cosine of both subjects' logits."""

    model: str
    tp: int
    cell: str
    forms: str
    agreement: float
    served: Compared
    matmuls: Compared


def cells(name: str, model: fnx_jax.Model, tp: int, wanted: Sequence[str], repeats: int) -> Iterator[Cell]:
    """Measures one checkpoint on one number of devices."""
    device, served = model.steps.device, Served(model.steps)
    sums = tp > 1 and can_split(model.params)
    trees = [split_inputs(tree, device.mesh) if sums else tree for tree in (device.params, model.params)]
    rng = np.random.default_rng(0)
    token_LT = rng.integers(10, model.config.vocabulary - 200, (LANES, REACH)).astype(np.int32)
    for cell in wanted:
        kind, rows = cell.split("_")[0], int(cell.split("_")[1])
        prompt, lanes = kind == "prompt", 1 if kind == "prompt" else rows
        tokens = token_LT[:lanes]
        forms = choose(model, trees, rows, prompt, sums)
        runs = [
            _Runs(s, tokens, rows if prompt else 0)
            for s in (served, Plain(model, tree_for(forms, trees), forms, lanes, REACH))
        ]
        some = max(3, repeats // 4) if prompt else repeats
        yield Cell(
            model=name,
            tp=tp,
            cell=cell,
            forms=f"experts {forms.experts} {forms.height}" + (f", chunk {forms.chunk}" if prompt else ""),
            agreement=_cosine(runs[0].first, runs[1].first),
            served=compare(runs[0], runs[1], some),
            matmuls=compare(row_matmuls(model, rows), bare_matmuls(model, rows), some),
        )


class _Runs:
    """One subject's calls of a cell: the same prompt again, or the next row of every lane.

    first: the first call's logits, of the prompt's last row or of every lane's.
    """

    def __init__(self, subject: Subject, token_LT: np.ndarray, prompt_rows: int):
        self.subject, self.token_LT, self.prompt_rows = subject, token_LT, prompt_rows
        self.position = CONTEXT_ROWS
        if not prompt_rows:
            for lane, tokens in enumerate(token_LT):
                subject.prompt(lane, tokens[:CONTEXT_ROWS])
        logits = np.asarray(self())
        self.first = logits[(prompt_rows - 1) % len(logits)] if prompt_rows else logits[: len(token_LT)]

    def __call__(self) -> object:
        if self.prompt_rows:
            return self.subject.prompt(0, self.token_LT[0, : self.prompt_rows])
        self.position += 1
        return self.subject.decode(self.token_LT, self.position - 1)


def _cosine(served: np.ndarray, plain: np.ndarray) -> float:
    a, b = served.ravel().astype(np.float64), plain.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def report(results: list[Cell], console: Console) -> None:
    """Prints the table."""
    table = Table(title="the row rule against plain jnp, and its matmuls against bare jnp.dot")
    for column in ("model", "tp", "cell", "served ms", "plain ms", "ratio", "cpu", "quartiles", "matmul ms", "bare ms"):
        table.add_column(column, justify="right")
    for column in ("ratio", "cpu", "quartiles", "agreement", "plain form"):
        table.add_column(column, justify="right")
    for found in results:
        table.add_row(
            found.model,
            str(found.tp),
            found.cell,
            *found.served.columns(),
            *found.matmuls.columns(),
            f"{found.agreement:.4f}",
            found.forms,
        )
    console.print(table)


def measure(names: Sequence[str], tps: Sequence[int]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Runs everything that was asked for. Yields each cell with the model's fingerprint."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = {"demo": DEMO, "synthetic": Path(scratch)}.get(name, Path(name))
            if name == "synthetic":
                write_checkpoint(folder)
            for tp in tps:
                model = fnx_jax.load(folder, devices=tp, lanes=LANES, context=CONTEXT, draft_head=False)
                for found in cells(name, model, tp, FLAGS.cell, FLAGS.repeats):
                    yield found, asdict(model.fingerprint)


def figures(results: Sequence[Cell]) -> dict[str, Any]:
    """Results by name, as JSON."""
    return {f"{found.model}_tp{found.tp}_{found.cell}": asdict(found) for found in results}


def main(positional: list[str]) -> int:
    """Measures what the flags ask for."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    if not all(tp.isdigit() and int(tp) for tp in FLAGS.tp):
        raise UsageError(f"--tp={','.join(FLAGS.tp)}: numbers of devices, 1 or more, were wanted")
    origin = note_origin() if FLAGS.receipt else None
    logging.set_verbosity(logging.WARNING)
    tps = [int(tp) for tp in FLAGS.tp]
    jax.config.update("jax_num_cpu_devices", max(tps))
    if FLAGS.compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", FLAGS.compilation_cache_dir)
    console, results, fingerprint = Console(width=180), [], {}
    for found, prints in measure(FLAGS.model, tps):
        results.append(found)
        fingerprint = prints
        console.print(f"{found.model} tp {found.tp} {found.cell}: {found.served.ratio:.2f} ({found.forms})")
        if FLAGS.out:
            Path(FLAGS.out).write_text(json.dumps(figures(results), indent=1))
    report(results, console)
    if origin is not None:
        device = jax.devices()[0].device_kind
        receipt = make_receipt(origin, "exactness", device, figures(results), fingerprint=fingerprint)
        console.print(f"receipt: {write_receipt(receipt)}")
    return 0


if __name__ == "__main__":
    run(main, FLAGS)
