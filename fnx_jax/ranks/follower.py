"""Host side: every rank but 0. It does what rank 0 says, as long as rank 0 is there. Read next: leader.py."""

import logging
import socket
import time
from collections.abc import Callable

from fnx_jax.engine.steps import DraftPlan
from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.group import Group, spell_address
from fnx_jax.ranks.handshake import compare, greet
from fnx_jax.ranks.kept import KeptHere
from fnx_jax.ranks.link import Link
from fnx_jax.ranks.messages import Commit, CopyPage, Draft, End, Keep, Ready, Restore, Restored, Round, Service
from fnx_jax.ranks.steps import Called

RETRY_S = 0.2
logger = logging.getLogger(__name__)


def join(
    group: Group, facts: dict[str, str], on_lost: Callable[[str], None], beat: Callable[[], int] = lambda: 0
) -> Link:
    """Connects to rank 0, waiting for it, and agrees with it.

    Args: facts: what must be the same on every rank. on_lost, beat: see Link.
    Raises: Disagreement; RankLost where rank 0 does not come or closes the door; Stranger where its token is another.
    """
    channel = Channel(_connect(group), group.join_s)  # rank 0 sees to one connection after the other
    try:
        greet(channel, group)
        compare(channel, facts, group.rank, 0)
    except BaseException:
        channel.close()
        raise
    channel.silence_s = group.start_silence_s
    return Link(channel, 0, group.beat_s, on_lost, beat)


def _connect(group: Group) -> socket.socket:
    deadline_s = time.monotonic() + group.join_s
    while True:
        try:
            return socket.create_connection((group.host, group.port), timeout=group.silence_s)
        except OSError as error:
            if time.monotonic() > deadline_s:
                where = spell_address(group.host, group.port)
                raise RankLost(f"rank 0 did not come to {where} within {group.join_s:g} s: {error}") from error
        time.sleep(RETRY_S)


def service_port(link: Link, timeout_s: float) -> int:
    """Waits for the port of JAX's coordination service. Raises RankLost, TimeoutError."""
    message = link.receive(timeout_s)
    if isinstance(message, End):
        raise RankLost("rank 0 has stopped")
    if not isinstance(message, Service):
        raise RankLost(f"rank 0 sent a {type(message).__name__} before its service")
    return message.port


def follow(link: Link, steps: Called, silence_s: float) -> None:
    """Makes every call that rank 0 makes, in its order, until rank 0 ends.

    Args: silence_s: when rank 0 is lost once all serve.
    Raises: RankLost, and what a call raises, but for drafts and kept states, which cost rank 0 no more either.
    """
    kept = KeptHere(steps)
    link.send(Ready())
    while True:
        match link.receive():
            case Ready():
                link.expect_signs(silence_s)
            case Round(plan):
                steps.round(plan)
            case Draft(plan):
                _draft(steps, plan)
            case Commit(length):
                steps.commit(length)
            case Keep(lane, length, slot):
                kept.keep(lane, length, slot)
            case Restore(slot, lane):
                link.send(Restored(kept.restore(slot, lane)))
            case CopyPage(source, target):
                kept.copy_page(source, target)
            case End():
                return link.close()
            case message:
                raise RankLost(f"rank 0 sent a {type(message).__name__} to one that follows")


def _draft(steps: Called, plan: DraftPlan) -> None:
    try:
        steps.draft(plan)
    except Exception as error:
        logger.warning("drafts failed here: %s: %s", type(error).__name__, error)
