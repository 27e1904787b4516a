"""Host side: what goes into which file of a result: one decoder layer a file, so that one layer is all that is held.

Read next: dequantise.py, quantise.py.
"""

import re
from dataclasses import dataclass

from checkpoints.architecture import Part, Table, parts
from checkpoints.inventory import Inventory
from checkpoints.naming import MTP_PREFIX


@dataclass(frozen=True)
class Unit:
    """Parts of the network that are written together.

    name: "embedding", "table 1", "layer 0", "head" or "draft". layer: of a decoder layer, else None. prefix: of the
    layer's tensors, dot included, "" where they have none in common.
    """

    name: str
    parts: tuple[Part, ...]
    layer: int | None = None
    prefix: str = ""


def network_units(inventory: Inventory) -> list[Unit]:
    """Returns all parts of a network in the order in which data flows: tables first, the draft head last."""
    prefix = inventory.prefix
    named = re.compile(re.escape(f"{prefix}layers.") + r"(\d+)\.")
    groups: dict[str, list[Part]] = {"embedding": []}
    tables: dict[str, list[Part]] = {}
    layers: dict[int, list[Part]] = {}
    ends: dict[str, list[Part]] = {"head": [], "draft": []}
    for part in parts(inventory.text, prefix, inventory.mtp_layers):
        name = part.name if hasattr(part, "name") else part.prefix  # type: ignore[union-attr]
        found = named.match(name)
        if isinstance(part, Table) and found:
            tables[f"table {found[1]}"] = [part]
        elif found:
            layers.setdefault(int(found[1]), []).append(part)
        elif name.startswith(MTP_PREFIX):
            ends["draft"].append(part)
        elif name == f"{prefix}embed_tokens.weight":
            groups["embedding"].append(part)
        else:
            ends["head"].append(part)
    units = [Unit(name, tuple(found)) for name, found in (groups | tables).items()]
    units += [Unit(f"layer {i}", tuple(layers[i]), i, f"{prefix}layers.{i}.") for i in sorted(layers)]
    return units + [Unit(name, tuple(found)) for name, found in ends.items() if found]


def shard_names(count: int) -> list[str]:
    """Names of numbered files, as an index lists them."""
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
