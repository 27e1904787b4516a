"""Host side: what a checkpoint holds, part by part of the network, counted from headers. Read next: report.py."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from checkpoints.exl3 import MARKERS, SCALE_PAIRS, TILE, WIDTHS
from checkpoints.headers import TensorInfo
from checkpoints.inventory import VISION_PREFIX
from checkpoints.naming import MTP_PREFIX
from checkpoints.store import Store

_NUMBER = re.compile(r"\.\d+(?=\.)")
_PATTERNS = (
    (r"\.mlp\.experts\.(\*\.)?gate_proj\.", "routed experts gate"),
    (r"\.mlp\.experts\.(\*\.)?up_proj\.", "routed experts up"),
    (r"\.mlp\.experts\.gate_up_proj", "routed experts gate+up"),
    (r"\.mlp\.experts\.(\*\.)?down_proj\b", "routed experts down"),
    (r"\.mlp\.shared_expert\.", "shared expert"),
    (r"\.mlp\.(gate|shared_expert_gate)\.", "routers"),
    (r"\.linear_attn\.(in_proj_qkv|in_proj_z|out_proj)\.", "GDN projections"),
    (r"\.linear_attn\.in_proj_[ab]\.", "GDN gates"),
    (r"\.linear_attn\.(A_log|dt_bias|conv1d)\b", "GDN decay, conv"),
    (r"\.self_attn\.[qkvo]_proj\.", "attention projections"),
    (r"\.indexer\.index_qk_proj\.", "indexer"),
    (r"hyper_connection", "hyper-connections"),
    (r"\.ple_embedding\.", "n-gram table"),
    (r"\.ple\.(key_proj|value_proj|conv1d)\.", "n-gram mixing"),
    (r"^mtp\.fc_(embedding|hidden)\.", "fusion"),
    (r"norm\w*\.weight$", "norms"),
    (r"embed_tokens\.", "embeddings"),
    (r"^lm_head\.", "lm_head"),
)
_ORDER = [name for _, name in _PATTERNS]
_LAYER_PARTS = {*(part for pair in SCALE_PAIRS for part in pair), *MARKERS, "bias"}
VISION, OTHER = "vision tower", "other"
OUTSIDE_LAYERS = ("lm_head", "n-gram table", VISION, OTHER)


@dataclass
class Family:
    """Tensors of one part of the network.

    name: as `family_of` gives it. quantised: EXL3 layers, or pieces of an EXL3 n-gram table. plain: other tensors.
    shapes: [out, in] of layers as stored, or the stored shape -> how many. bits, codebooks: of quantised ones;
    dtypes: of plain tensors; all likewise. nbytes: of all tensors, scales included. values: weights as stored, padding
    included. quantised_values, quantised_bits: of quantised weights alone, without scales.
    """

    name: str
    quantised: int = 0
    plain: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    bits: dict[float, int] = field(default_factory=dict)
    codebooks: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0
    values: int = 0
    quantised_values: int = 0
    quantised_bits: float = 0.0


def family_of(name: str) -> str:
    """Returns the family of a tensor by its name; those of the draft head start with "MTP"."""
    return _family_of(_NUMBER.sub(".*", name))


@lru_cache(maxsize=4096)
def _family_of(pattern: str) -> str:
    """By the name with its numbers taken out, of which there are only a few hundred."""
    if pattern.startswith(VISION_PREFIX):
        return VISION
    found = next((name for regex, name in _PATTERNS if re.search(regex, pattern)), OTHER)
    return f"MTP {found}" if pattern.startswith(MTP_PREFIX) and found != OTHER else found


def families(store: Store) -> list[Family]:
    """Counts every tensor of a store in its family; text model first, then draft head, vision tower and the rest."""
    found: dict[str, Family] = {}
    for name in store.names():
        key = family_of(name)
        if key not in found:
            found[key] = Family(key)
        _count(found[key], store, store.info(name))
    return sorted(found.values(), key=lambda family: _rank(family.name))


def _rank(name: str) -> tuple[int, int]:
    if name in (VISION, OTHER):
        return 2, name == OTHER
    base = name.removeprefix("MTP ")
    return int(base != name), _ORDER.index(base)


def _count(family: Family, store: Store, info: TensorInfo) -> None:
    module, _, ending = info.name.rpartition(".")
    family.nbytes += info.nbytes
    if ending == "trellis" and info.dtype == "I16" and len(info.shape) == 3:
        inputs, outputs = info.shape[0] * TILE, info.shape[1] * TILE
        markers = [marker for marker in MARKERS if f"{module}.{marker}" in store]
        width = WIDTHS.get(info.shape[2], info.shape[2] / TILE)
        _count_quantised(family, (outputs, inputs), width, "+".join(markers) or "3inst")
    elif ending == "trellis" and (row_dim := _row_dim(store, module)) and len(info.shape) == 2:
        _count_quantised(family, (info.shape[0], row_dim), (info.shape[1] - 1) * 16 / row_dim, "mul1")
    elif not (ending in _LAYER_PARTS and f"{module}.trellis" in store):
        family.plain += 1
        _add(family.dtypes, info.dtype)
        _add(family.shapes, "x".join(map(str, info.shape)) or "1")
        family.values += prod(info.shape)


def _count_quantised(family: Family, shape: tuple[int, int], bits: float, codebook: str) -> None:
    family.quantised += 1
    _add(family.shapes, "x".join(map(str, shape)))
    _add(family.bits, bits)
    _add(family.codebooks, codebook)
    family.values += prod(shape)
    family.quantised_values += prod(shape)
    family.quantised_bits += prod(shape) * bits


def _add(counts: dict[Any, int], key: object) -> None:
    counts[key] = counts.get(key, 0) + 1


def _row_dim(store: Store, module: str) -> int:
    """Values in a row of the table that a two-axis trellis belongs to, 0 where that is not to be found out."""
    bias = f"{module.partition('.shard_')[0]}.head_bias"
    shape = store.info(bias).shape if bias in store else ()
    return shape[1] if len(shape) == 2 else 0
