"""Host side: how many bits each linear of a network gets, from a recipe or from an average over its decoder layers.

Read next: quantise.py.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoints.architecture import Experts, Linear, Part, Table
from checkpoints.converter.units import Unit
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import BLOCK, WIDTHS
from checkpoints.naming import MTP_PREFIX
from checkpoints.recipe import Recipe

HEAD = "lm_head"
_ROUNDS = ("dense", "dense", "down", "gate and up")
"""Who is raised by one step, in this order, while an average allows: what every token reads comes first."""


@dataclass(frozen=True)
class Average:
    """bits: of the weights of all decoder layers together, at most. head, draft: of the head and of the draft head."""

    bits: float
    head: float = 6
    draft: float = 4


def recipe_widths(units: Iterable[Unit], recipe: Recipe) -> dict[str, float]:
    """Bits by module name, for those linears that a recipe has a width for."""
    widths = {linear.name: recipe.bits_of(linear.name) for linear in _linears(units)}
    return {name: bits for name, bits in widths.items() if bits is not None}


def average_widths(units: Iterable[Unit], recipe: Recipe, average: Average, codebook: str) -> dict[str, float]:
    """Bits by module name, for the linears that a recipe quantises, whatever widths it gives them.

    Decoder layers begin at the widest step that the average allows. Then mixers and shared experts, these again, down
    projections, and gate and up projections are raised by a step, layers near the ends of the stack first, each where
    the average still holds. The indexer stays where it began.
    Raises: CheckpointError where no width is as low as the average.
    """
    units = list(units)
    steps = allowed_widths(codebook)
    start = max((step for step in steps if step <= average.bits), default=None)
    if start is None or average.bits > steps[-1]:
        raise CheckpointError(f"{average.bits} bits on average: from {steps[0]} to {steps[-1]} was wanted")
    wanted = recipe_widths(units, recipe)
    inside = {unit.name for unit in units if unit.layer is not None}
    groups: dict[tuple[str, int], list[Linear]] = defaultdict(list)
    widths: dict[str, float] = {}
    for unit in units:
        for linear in _linears([unit]):
            if linear.name in wanted and unit.name in inside:
                groups[_kind(linear.name), unit.layer or 0].append(linear)
                widths[linear.name] = start
            elif linear.name in wanted:
                widths[linear.name] = average.draft if linear.name.startswith(MTP_PREFIX) else average.head
    _raise_while(groups, widths, steps, average.bits, len(inside))
    return widths


def average_bits(units: Iterable[Unit], widths: Mapping[str, float]) -> float:
    """Bits a weight of all quantised linears of decoder layers, padding included."""
    linears = [x for x in _linears(unit for unit in units if unit.layer is not None) if x.name in widths]
    total = sum(stored_weights(linear.shape) for linear in linears)
    return sum(stored_weights(linear.shape) * widths[linear.name] for linear in linears) / max(total, 1)


def check_widths(units: Iterable[Unit], widths: Mapping[str, float], codebook: str, ngram_bits: int, pad: bool) -> None:
    """Refuses, before anything is done, widths that do not exist and sizes that would have to be padded.

    Raises: CheckpointError naming the first linear or table.
    """
    units, allowed = list(units), allowed_widths(codebook)
    for linear in _linears(units):
        if linear.name not in widths:
            continue
        if widths[linear.name] not in allowed:
            wanted = ", ".join(f"{step:g}" for step in allowed)
            raise CheckpointError(
                f"{linear.name}: {widths[linear.name]} bits with codebook {codebook}; known: {wanted}"
            )
        if not pad and any(size % BLOCK for size in linear.shape):
            raise CheckpointError(
                f"{linear.name} {list(linear.shape)}: no multiples of {BLOCK}; --pad fills them up with zeros"
            )
    for table in (part for unit in units for part in unit.parts if isinstance(part, Table)):
        if ngram_bits and (not 1 <= ngram_bits <= 8 or table.row_dim * ngram_bits % 16):
            raise CheckpointError(
                f"{table.prefix}: rows of {table.row_dim} values with {ngram_bits} bits do not fill 16-bit words"
            )


def allowed_widths(codebook: str) -> list[float]:
    """Widths that a codebook has, ascending."""
    return [bits for bits in WIDTHS.values() if codebook == "mul1" or bits % 1 == 0]


def stored_weights(shape: tuple[int, int]) -> int:
    """Weights of a linear map once both sizes are whole blocks."""
    outputs, inputs = (-(-size // BLOCK) * BLOCK for size in shape)
    return outputs * inputs


def _linears(units: Iterable[Unit]) -> Iterable[Linear]:
    for part in (part for unit in units for part in unit.parts):
        yield from part_linears(part)


def part_linears(part: Part) -> Iterable[Linear]:
    """The linear maps of one part of the network."""
    if isinstance(part, Experts):
        yield from part.linears()
    elif isinstance(part, Linear):
        yield part


def _kind(name: str) -> str:
    if name.endswith("index_qk_proj"):
        return "indexer"
    if re.search(r"\.mlp\.experts\.\d+\.", name):
        return "down" if name.endswith("down_proj") else "gate and up"
    return "dense"


def _raise_while(
    groups: Mapping[tuple[str, int], list[Linear]],
    widths: dict[str, float],
    steps: list[float],
    average: float,
    layers: int,
) -> None:
    size = {key: sum(stored_weights(linear.shape) for linear in group) for key, group in groups.items()}
    room = sum(size.values()) * average - sum(
        stored_weights(linear.shape) * widths[linear.name] for group in groups.values() for linear in group
    )
    for kind in _ROUNDS:
        for layer in sorted(range(layers), key=lambda i: (min(i, layers - 1 - i), i)):
            group = groups.get((kind, layer))
            if not group:
                continue
            now = widths[group[0].name]
            step = next((step for step in steps if step > now), now)
            cost = (step - now) * size[kind, layer]
            if cost <= room + 1e-6:
                room -= cost
                widths.update({linear.name: step for linear in group})
