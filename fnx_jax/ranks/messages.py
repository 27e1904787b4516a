"""Host side: what ranks tell each other, and its bytes: MessagePack, decoded into these types or refused.

Nothing that is decoded can run code. Arrays are (dtype, shape, bytes), of the dtypes that plans use.
"""

import math
from typing import Any

import msgspec
import numpy as np

from fnx_jax.engine.steps import DraftPlan, RoundPlan, Steps
from fnx_jax.ranks.errors import RankLost

DTYPES = ("int32", "float32", "bool")
SMALL = 1 << 20
"""Bytes of any message at most, but of rounds and drafts."""


class Facts(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What must be the same on every rank, by name, in the order in which it is compared."""

    values: dict[str, str]


class Service(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 to the others: the port of JAX's coordination service on the coordinator's host."""

    port: int


class Ready(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A follower is warmed up; from rank 0, all are, and serving begins."""


class Beat(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A sign of life. compilations: how many this rank has made since it was warmed up."""

    compilations: int


class Round(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 runs this round now."""

    plan: RoundPlan


class Draft(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 drafts now."""

    plan: DraftPlan


class Commit(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 commits these lengths now. length: int32 [L]."""

    length: np.ndarray


class Keep(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 copies a lane's state after so many rows into a slot."""

    lane: int
    length: int
    slot: int


class Restore(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 gives a lane the state in a slot."""

    slot: int
    lane: int


class Restored(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The answer to each Restore. whole: the sender had the state, and its lane has it now."""

    whole: bool


class CopyPage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 copies a page."""

    source: int
    target: int


class Stop(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A follower was asked to stop; rank 0 may finish what runs, then ends all."""


class End(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rank 0 ends in order."""


class Left(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The sender gives up. why: for the log of the others."""

    why: str


AnyMessage = (
    Facts | Service | Ready | Beat | Round | Draft | Commit | Keep | Restore | Restored | CopyPage | Stop | End | Left
)


def encode(message: AnyMessage) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode(data: bytes | bytearray) -> AnyMessage:
    """The message of some bytes. Raises RankLost for anything that is none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise RankLost(f"a message that is none: {error}") from error


def most_bytes(steps: Steps) -> int:
    """Returns what the largest round takes, or all lanes' drafts: each row drawn, with counts, seen ids and a bias."""
    per_row = 4 * (steps.history + 3) + 9 * steps.vocabulary + 1024
    return SMALL + steps.max_rows * per_row + 4 * steps.lanes * -(-steps.context // steps.page)


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        return (value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise NotImplementedError(f"messages hold no {type(value).__name__}")


def _from_plain(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise NotImplementedError(f"messages hold no {kind.__name__}")
    dtype, shape, data = msgspec.convert(value, tuple[str, tuple[int, ...], bytes])
    if dtype not in DTYPES or min(shape, default=0) < 0:
        raise ValueError(f"an array of {dtype} {list(shape)}")
    if math.prod(shape) * np.dtype(dtype).itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for {dtype} {list(shape)}")
    # A copy: the device may read an array of its own at any time, and wants it aligned.
    return np.frombuffer(data, dtype).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_DECODER = msgspec.msgpack.Decoder(AnyMessage, dec_hook=_from_plain)
