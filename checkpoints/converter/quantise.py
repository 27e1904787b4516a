"""Host side: a plain checkpoint as an EXL3 pack, unit by unit; parts of a unit are files until it is whole.

Read next: jobs.py (what is quantised together), tables.py (n-gram tables), pack.py (whole files and config).
"""

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from checkpoints.architecture import Linear
from checkpoints.converter.jobs import Job, inputs_of, read_weight, unit_jobs
from checkpoints.converter.scales import SharedScales
from checkpoints.converter.units import Unit
from checkpoints.converter.workplace import Workplace
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import BLOCK, MARKERS, TILE
from checkpoints.quantiser.rotation import rotate_columns, rotate_rows
from checkpoints.quantize import Feedback, Group, OutScales, codebook_scale, prepare_hessian, quantize_groups
from checkpoints.recipe import Recipe
from checkpoints.store import Store
from checkpoints.write import write_safetensors

Advance = Callable[..., None]
"""Told of weights done, in bytes of two each; `again=True` where an earlier run did them."""
WEIGHT_BYTES = 2
_LARGEST_ERROR = 0.9
"""Relative squared error beyond which a layer cannot be what was asked for."""


class Calibrator(Protocol):
    """Runs calibration rows through the layers that are quantised already, and tells what the next ones read.

    Units come in order; a run that is taken up calls `end` for all finished ones again. rows, columns: of token ids.
    """

    rows: int
    columns: int

    def hessians(self, unit: Unit) -> Mapping[str, np.ndarray]:
        """X^T X / rows of a unit's inputs, by `jobs.inputs_of`, float32 [K, K]; of those that are known."""
        ...

    def end(self, unit: Unit, file: Path) -> None:
        """Takes the rows through a unit as its finished file holds it."""
        ...


@dataclass(frozen=True)
class Settings:
    """What a pack is to be.

    widths: bits by module; a linear without one stays plain. recipe: dtypes of plain tensors and side files.
    ngram_bits: of n-gram rows, 0 keeps them plain. out_scales, seed: see `quantize_linear`. shared_scales: one
    search of the codebook's factor for each width.
    """

    widths: Mapping[str, float]
    recipe: Recipe
    codebook: str
    ngram_bits: int
    out_scales: OutScales
    shared_scales: bool
    seed: int


def quantise_unit(
    store: Store, work: Workplace, unit: Unit, settings: Settings, calibrator: Calibrator | None, advance: Advance
) -> list[Path]:
    """Quantises the linears of a unit, each job a file of `work.pieces`; returns those files.

    Raises: CheckpointError naming the linear where a weight is not finite or the result is not near it.
    """
    jobs = unit_jobs(unit, settings.widths)
    files = [work.pieces / f"{unit.name.replace(' ', '-')}-{job.number:04d}.safetensors" for job in jobs]
    hessians: Mapping[str, np.ndarray] = {}
    if calibrator is not None and not all(file.exists() for file in files):
        hessians = calibrator.hessians(unit)
    reader, scales = _Reader(store, settings, hessians), SharedScales(work.folder / "scales.json")
    for job, file in zip(jobs, files, strict=True):
        again = file.exists()
        if not again:
            scale = scales.get(job.bits, partial(reader.scale, job)) if settings.shared_scales else None
            _quantise_job(reader, file, job, scale)
        advance(job.weights * WEIGHT_BYTES, again=again)
    return files


def errors_in(metadata: Mapping[str, str]) -> dict[str, float]:
    """Relative squared error of each linear of a piece, by the metadata of its file."""
    return json.loads(metadata["relative_error"])


@dataclass(frozen=True)
class _Reader:
    """The weights of a unit's jobs, and what is known of their inputs; a Hessian is prepared once for all jobs."""

    store: Store
    settings: Settings
    hessians: Mapping[str, np.ndarray]
    prepared: dict[str, Feedback | None] = field(default_factory=dict)

    def groups(self, job: Job) -> Iterator[tuple[list[str], Group]]:
        """Linears that read the same rows, or all of a job where nothing is known of them, and their names."""
        groups: dict[str, list[Linear]] = {}
        for linear in job.linears:
            groups.setdefault(inputs_of(linear.name) if self.hessians else "", []).append(linear)
        for inputs, linears in groups.items():
            seed = zlib.crc32(f"{self.settings.seed} {inputs or inputs_of(linears[0].name)}".encode())
            if inputs and inputs not in self.prepared:
                with self.naming(linears[0].name):
                    self.prepared[inputs] = prepare_hessian(self.hessians.get(inputs), linears[0].shape[1], seed)
            weights = tuple(read_weight(self.store, linear) for linear in linears)
            yield [linear.name for linear in linears], Group(weights, self.prepared.get(inputs), seed)

    def scale(self, job: Job) -> float:
        """The codebook's factor for a job's first linear."""
        ((name,), group), settings = next(self.groups(replace(job, linears=job.linears[:1]))), self.settings
        weight, out_scales = group.weights[0], settings.out_scales
        with self.naming(name):
            return codebook_scale(
                weight, job.bits, settings.codebook, group.hessian, seed=group.seed, out_scales=out_scales
            )

    @contextlib.contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Raises CheckpointError that names a linear in place of ValueError."""
        try:
            yield
        except ValueError as error:
            raise CheckpointError(f"{self.store.path}: {name}: {error}") from error


def _quantise_job(reader: _Reader, file: Path, job: Job, scale: float | None) -> None:
    groups, settings = list(reader.groups(job)), reader.settings
    together = [group for _, group in groups]
    with reader.naming(job.linears[0].name):
        layers = quantize_groups(together, job.bits, settings.codebook, out_scales=settings.out_scales, scale=scale)
    tensors: dict[str, np.ndarray] = {}
    errors: dict[str, float] = {}
    for (names, group), found in zip(groups, layers, strict=True):
        for name, weight, layer in zip(names, group.weights, found, strict=True):
            errors[name] = _relative_error(layer, weight, settings.codebook)
            if not errors[name] <= _LARGEST_ERROR:
                raise CheckpointError(f"{reader.store.path}: {name}: error {errors[name]:.3f} of the weights' square")
            tensors |= {f"{name}.{part}": array for part, array in layer.items()}
    write_safetensors(file, tensors, {"relative_error": json.dumps(errors)})


def _relative_error(layer: Mapping[str, np.ndarray], weight_KN: np.ndarray, codebook: str) -> float:
    """Of the layer as a reader of the file multiplies it out; 0 where there is nothing but zeros."""
    from pallas_kernels.exl3 import decode_numpy

    assert codebook not in MARKERS or codebook in layer
    suh, svh = (layer[part].astype(np.float32) for part in ("suh", "svh"))
    K, N = weight_KN.shape
    size = error = 0.0
    for first in range(0, K, BLOCK):  # rows that one rotation mixes
        rows = slice(first, first + BLOCK)
        inner = decode_numpy(layer["trellis"][first // TILE : (first + BLOCK) // TILE], codebook).astype(np.float32)
        found = suh[rows, None] * rotate_rows(rotate_columns(inner)) * svh
        wanted = weight_KN[rows]
        size += float(np.sum(np.square(wanted, dtype=np.float64)))
        error += float(np.sum(np.square(found[: len(wanted), :N] - wanted, dtype=np.float64)))
    return error / size if size else 0.0
