"""Host side: two ends of a connection make sure that both are ranks of one group, before a record is read.

Each sends who it is and a nonce, then a keyed digest over both, which only the holder of the token can make.
"""

import hashlib
import hmac
import secrets
import struct

from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import Disagreement, RankLost, Stranger
from fnx_jax.ranks.group import Group
from fnx_jax.ranks.messages import Facts, Left

PROTOCOL = 1
MAGIC = b"fnxranks"
_OPENING = struct.Struct(">8sHHH32s")
_DIGEST_BYTES = 32


def greet(channel: Channel, group: Group) -> int:
    """Opens a fresh connection, from either end of it.

    Returns: the other's rank, below `group.ranks`.
    Raises: Stranger where it is no rank or has another token; Disagreement where it counts other ranks or speaks
      another protocol; RankLost where it leaves.
    """
    mine = _OPENING.pack(MAGIC, PROTOCOL, group.ranks, group.rank, secrets.token_bytes(32))
    channel.write(mine)
    theirs = bytes(channel.read(_OPENING.size))
    magic, protocol, ranks, rank, _ = _OPENING.unpack(theirs)
    if magic != MAGIC or (rank == 0) == (group.rank == 0):  # rank 0 talks to all others, they to it alone
        raise Stranger("it is no rank")
    if protocol != PROTOCOL:
        raise Disagreement(f"protocol: {PROTOCOL} on rank {group.rank}, {protocol} on rank {rank}")
    channel.write(_digest(group.token, mine, theirs))
    if not hmac.compare_digest(bytes(channel.read(_DIGEST_BYTES)), _digest(group.token, theirs, mine)):
        raise Stranger("it has another token")
    if ranks != group.ranks or rank >= ranks:
        raise Disagreement(f"ranks: {group.ranks} on rank {group.rank}, {ranks} on rank {rank}")
    return rank


def _digest(token: bytes, sender: bytes, receiver: bytes) -> bytes:
    return hmac.new(token, sender + receiver, hashlib.sha256).digest()


def compare(channel: Channel, mine: dict[str, str], rank: int, other: int) -> None:
    """Exchanges facts and holds them against each other, in the order of rank 0's.

    Raises: Disagreement naming the first that differs, with both values, or why the other refuses; RankLost.
    """
    channel.send(Facts(mine))
    message = channel.receive()
    if isinstance(message, Left):
        raise Disagreement(message.why)
    if not isinstance(message, Facts):
        raise RankLost(f"facts were expected, not {type(message).__name__}")
    first, second = (mine, message.values) if rank == 0 else (message.values, mine)
    for name in [*first, *second]:
        values = first.get(name, "nothing"), second.get(name, "nothing")
        if values[0] != values[1]:
            raise Disagreement(f"{name}: {values[0]} on rank 0, {values[1]} on rank {max(rank, other)}")


def refuse(channel: Channel, why: str) -> None:
    """Tells a rank that was greeted why it is not let in, instead of facts. Raises RankLost."""
    channel.send(Left(why))
    channel.receive()  # a connection closed on unread facts may lose the answer
