"""Host side: which linears of a unit are quantised together, and where their weights come from. Next: quantise.py."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from checkpoints.architecture import Experts, Linear
from checkpoints.converter.units import Unit
from checkpoints.errors import CheckpointError
from checkpoints.naming import read_expert
from checkpoints.store import Store

_EXPERTS = 32
"""Experts of a job: what is lost where a run is killed."""
_SHARED = (
    (re.compile(r"\.(linear_attn\.in_proj_(qkv|z)|self_attn\.([qkv]_proj|indexer\.index_qk_proj))$"), "mixer"),
    (re.compile(r"\.mlp\.(shared_expert|experts\.\d+)\.(gate|up)_proj$"), "mlp"),
)
_EXPERT = re.compile(r"^(.*)mlp\.experts\.(\d+)\.(\w+)$")


@dataclass(frozen=True)
class Job:
    """Linears of one width, quantised together. number: within its unit."""

    number: int
    bits: float
    linears: tuple[Linear, ...]

    @property
    def weights(self) -> int:
        """Weights of all of them."""
        return sum(linear.shape[0] * linear.shape[1] for linear in self.linears)


def unit_jobs(unit: Unit, widths: Mapping[str, float]) -> list[Job]:
    """Cuts the quantised linears of a unit into jobs: by width, inputs or shape, experts some at a time."""
    groups: dict[tuple, list[Linear]] = defaultdict(list)
    for part in unit.parts:
        if isinstance(part, Linear) and part.name in widths:
            groups[inputs_of(part.name), widths[part.name]].append(part)
        elif isinstance(part, Experts):
            for linear in part.linears():
                if linear.name in widths:
                    (_, expert, projection), bits = _expert(linear.name), widths[linear.name]
                    groups["experts", expert // _EXPERTS, projection == "down_proj", bits].append(linear)
    return [Job(number, key[-1], tuple(group)) for number, (key, group) in enumerate(groups.items())]


def inputs_of(name: str) -> str:
    """A name for what a linear reads: the same for all that read the same rows."""
    for pattern, shared in _SHARED:
        if found := pattern.search(name):
            return f"{name[: found.start()]}.{shared}"
    return name


def read_weight(store: Store, linear: Linear) -> Float32[np.ndarray, "K N"]:
    """Reads a linear from a plain checkpoint, inputs first.

    Raises: CheckpointError where it is not there or holds a value that is not finite.
    """
    if _EXPERT.match(linear.name):
        prefix, expert, projection = _expert(linear.name)
        weight_OI = read_expert(store, prefix, expert, projection)
    else:
        weight_OI = store.read(f"{weight_name(store, linear.name)}.weight")
    weight_KN = weight_OI.T.astype(np.float32)
    if not np.isfinite(weight_KN).all():
        raise CheckpointError(f"{store.path}: {linear.name}: holds a value that is not finite")
    return weight_KN


def weight_name(store: Store, name: str) -> str:
    """The module whose weight a linear has: its own, but for a head that is tied to the embedding."""
    if name == "lm_head" and "lm_head.weight" not in store:
        return next(name for name in store.names() if name.endswith("embed_tokens.weight")).removesuffix(".weight")
    return name


def _expert(name: str) -> tuple[str, int, str]:
    found = _EXPERT.match(name)
    assert found is not None
    return found[1], int(found[2]), found[3]
