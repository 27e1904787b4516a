"""Host side: what the tensors of one part of the network must look like, in whichever form a store holds it.

The form is the store's choice, part by part; the sizes are the config's. Only names and headers are looked at, no
tensor is read. Read next: inventory.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from checkpoints.architecture import Experts, Linear, Plain, Table
from checkpoints.exl3 import BLOCK, MARKERS, SCALE_PAIRS, TILE, WIDTHS, is_linear
from checkpoints.headers import TensorInfo
from checkpoints.naming import names_under
from checkpoints.ngram_parts import PLAIN_DTYPES
from checkpoints.store import Store

TABLE_BITS = range(1, 9)


@dataclass(frozen=True, slots=True)
class Want:
    """What a header must say. dtypes: codes allowed. shape: for each axis its size, or the sizes allowed there."""

    dtypes: tuple[str, ...]
    shape: tuple[int | tuple[int, ...], ...]

    def accepts(self, info: TensorInfo) -> bool:
        """Tells whether a tensor's header is one of those wanted."""
        return (
            info.dtype in self.dtypes
            and len(info.shape) == len(self.shape)
            and all(
                size == wanted if isinstance(wanted, int) else size in wanted
                for size, wanted in zip(info.shape, self.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        sizes = (str(size) if isinstance(size, int) else "|".join(map(str, size)) for size in self.shape)
        return f"{' or '.join(self.dtypes)} [{', '.join(sizes)}]"


@lru_cache(maxsize=256)
def floats(*shape: int) -> Want:
    """A plain float tensor; equal shapes share one object, which matters with hundreds of thousands of tensors."""
    return Want(PLAIN_DTYPES, shape)


def plain_wants(part: Plain) -> Iterator[tuple[str, Want]]:
    """Yields the one tensor of a part that has a single form."""
    yield part.name, floats(*part.shape)


def linear_wants(store: Store, part: Linear, marker: str | None) -> Iterator[tuple[str, Want]]:
    """Yields the tensors of a linear map, plain or EXL3; `marker` is the codebook whose marker it must have, if any."""
    if not is_linear(store, part.name):
        yield f"{part.name}.weight", floats(*part.shape)
        return
    found = [name for name in MARKERS if f"{part.name}.{name}" in store] or ([marker] if marker else [])
    codebook = found[0] if found else "3inst"
    trellis, outputs, vectors = _exl3_wants(part.shape, codebook)
    yield f"{part.name}.trellis", trellis
    for (scale, signs), (of_scale, of_signs) in zip(SCALE_PAIRS, vectors, strict=True):
        packed = f"{part.name}.{signs}" in store and f"{part.name}.{scale}" not in store
        yield (f"{part.name}.{signs}", of_signs) if packed else (f"{part.name}.{scale}", of_scale)
    if found:
        yield f"{part.name}.{codebook}", Want(("I32",), ())
    if f"{part.name}.bias" in store:
        yield f"{part.name}.bias", Want(("F16", "F32"), (outputs,))


@lru_cache(maxsize=256)
def _exl3_wants(shape: tuple[int, int], codebook: str) -> tuple[Want, int, tuple[tuple[Want, Want], ...]]:
    """Trellis, stored outputs, and (scale, packed signs) for inputs and outputs; writers pad both to whole blocks."""
    outputs, inputs = (-(-size // BLOCK) * BLOCK for size in shape)
    widths = tuple(words for words, bits in WIDTHS.items() if bits % 1 == 0 or codebook == "mul1")
    trellis = Want(("I16",), (inputs // TILE, outputs // TILE, widths))
    vectors = tuple((Want(("F16",), (size,)), Want(("I16",), (size // TILE,))) for size in (inputs, outputs))
    return trellis, outputs, vectors


def expert_wants(store: Store, part: Experts, marker: str | None) -> Iterator[tuple[str, Want]]:
    """Yields the tensors of a layer's experts: two fused ones, or those of every projection of every expert."""
    fused = f"{part.prefix}mlp.experts."
    if f"{fused}gate_up_proj" in store or f"{fused}down_proj" in store:
        yield f"{fused}gate_up_proj", floats(part.count, 2 * part.ffn, part.hidden)
        yield f"{fused}down_proj", floats(part.count, part.hidden, part.ffn)
        return
    for linear in part.linears():
        yield from linear_wants(store, linear, marker)


def table_wants(store: Store, part: Table) -> Iterator[tuple[str, Want]]:
    """Yields the tensors of an n-gram table: plain shards, EXL3 shards, or one EXL3 tensor."""
    module = f"{part.prefix}ngram_embedding."
    names = names_under(store, module)
    sharded = any(name.endswith(".trellis") and name.startswith(f"{module}shard_") for name in names)
    if f"{module}trellis" not in store and not sharded:
        for shard in range(part.shards):
            yield f"{module}shard_{shard}.weight", floats(part.rows // part.shards, part.row_dim)
        yield from _hash_wants(part, part.prefix, "ngram_heads_offsets", "ngram_heads_vocab_sizes")
        return
    words = tuple(1 + part.row_dim * bits // 16 for bits in TABLE_BITS if part.row_dim * bits % 16 == 0)
    if f"{module}trellis" in store:
        yield f"{module}trellis", Want(("I16",), (part.rows, words))
    else:
        for shard in range(part.shards):
            yield f"{module}shard_{shard}.trellis", Want(("I16",), (part.rows // part.shards, words))
    yield f"{module}head_bias", Want(("F16",), (len(part.sizes), part.row_dim))
    yield from _hash_wants(part, module, "head_offsets", "head_vocab_sizes")


def _hash_wants(part: Table, module: str, offsets: str, sizes: str) -> Iterator[tuple[str, Want]]:
    yield f"{module}layer_multipliers", Want(("I64",), (len(part.multipliers),))
    yield f"{module}{offsets}", Want(("I64",), (len(part.sizes),))
    yield f"{module}{sizes}", Want(("I64",), (len(part.sizes),))
