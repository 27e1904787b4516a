"""Host side: rank 0. It lets the others in, tells them what to do, and ends them. Read next: steps.py, follower.py."""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable

from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import Disagreement, RankLost, Stranger
from fnx_jax.ranks.group import Group, spell_address
from fnx_jax.ranks.handshake import compare, greet, refuse
from fnx_jax.ranks.link import Link
from fnx_jax.ranks.messages import AnyMessage, End, Left, Ready, Restored, Service, Stop

logger = logging.getLogger(__name__)
END_S = 2.0
"""How long the others may take to leave after the end."""
LOOK_S = 0.2


class Leader:
    """Rank 0's connections to all others. `let_in` comes first; `end` may come at any time, from another thread.

    Args:
      facts: what must be the same on every rank. on_lost: called once, on another thread, when a rank is lost.
      on_stop: called when a rank was asked to stop.
    lost: what happened, None while all is well.
    """

    def __init__(
        self,
        group: Group,
        facts: dict[str, str],
        on_lost: Callable[[str], None] = lambda why: None,
        on_stop: Callable[[], None] = lambda: None,
    ):
        self.lost: str | None = None
        self._group, self._facts, self._on_lost, self._on_stop = group, facts, on_lost, on_stop
        self._once, self._ready = threading.Lock(), threading.Semaphore(0)
        self._door, self._ending = threading.Lock(), threading.Event()  # the door is held while ranks are let in
        self._restored: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._links: dict[int, Link] = {}
        self._listeners: list[threading.Thread] = []

    def let_in(self, opened: Callable[[], None] = lambda: None) -> None:
        """Waits until every rank is there and agrees. opened: called once the port is had.

        Raises: Disagreement; RankLost where a rank stays away or leaves, or `end` came; OSError where the port cannot
          be had.
        """
        try:
            self._let_in(opened)
        except BaseException as error:
            if not self._ending.is_set():
                self.end(f"{type(error).__name__}: {error}")
            raise

    @property
    def compilations(self) -> int:
        """Compilations of all other ranks since they were warmed up, as they last said."""
        return sum(link.compilations for link in self._links.values())

    @property
    def signs(self) -> int:
        """Signs of life that all other ranks have given."""
        return sum(link.signs for link in self._links.values())

    def send(self, message: AnyMessage) -> None:
        """Tells every other rank. Raises RankLost."""
        self.check()
        for link in self._links.values():
            link.send(message)

    def check(self) -> None:
        """Raises RankLost where a rank is lost."""
        if self.lost is not None:
            raise RankLost(self.lost)

    def offer_service(self, host: str) -> str:
        """Picks a port for JAX's coordination service, tells the others, and returns its HOST:PORT."""
        with _listen(host, 0) as probe:
            port = probe.getsockname()[1]
        self.send(Service(port))
        return spell_address(host, port)

    def wait_ready(self) -> None:
        """Waits until every rank is warmed up, and tells them. Raises RankLost."""
        for _ in self._links:
            while not self._ready.acquire(timeout=LOOK_S):
                self.check()
        self.send(Ready())
        for link in self._links.values():
            link.expect_signs(self._group.silence_s)

    def all_restored(self) -> bool:
        """Waits for every rank's answer to the last Restore; whether all have the state. Raises RankLost."""
        whole = True
        for _ in self._links:
            while True:
                try:
                    whole &= self._restored.get(timeout=LOOK_S)
                    break
                except queue.Empty:
                    self.check()
        return whole

    def end(self, why: str | None = None) -> None:
        """Ends every other rank and waits, not for long, until they are gone. why: a fault, None for an orderly end."""
        self._ending.set()
        if self._door.acquire(timeout=END_S):
            self._door.release()
        deadline_s = time.monotonic() + END_S
        links = list(self._links.values())
        for link in links:
            link.expect_end()
            try:
                link.send(End() if why is None else Left(why))
            except RankLost:
                pass  # it is gone already
        for listener in self._listeners:
            listener.join(max(0.0, deadline_s - time.monotonic()))
        for link in links:
            link.close()

    def _let_in(self, opened: Callable[[], None]) -> None:
        group, deadline_s = self._group, time.monotonic() + self._group.join_s
        with self._door, _listen(group.host, group.port) as listener:
            opened()
            listener.settimeout(LOOK_S)
            while missing := sorted(set(range(1, group.ranks)) - set(self._links)):
                self.check()
                if self._ending.is_set():
                    raise RankLost(f"rank 0 was stopped before ranks {missing} came")
                if time.monotonic() > deadline_s:
                    raise RankLost(f"ranks {missing} did not come within {group.join_s:g} s")
                try:
                    connection, address = listener.accept()
                except TimeoutError:
                    continue
                self._let_one_in(Channel(connection, group.silence_s), address[0])

    def _let_one_in(self, channel: Channel, host: str) -> None:
        try:
            rank = greet(channel, self._group)
            if rank in self._links:
                why = f"rank {rank} is there already"
                refuse(channel, why)
                raise Stranger(why)
            compare(channel, self._facts, 0, rank)
        except (Stranger, RankLost) as error:
            logger.warning("a connection from %s was refused: %s", host, error)
            return channel.close()
        except Disagreement:
            channel.close()
            raise
        channel.silence_s = self._group.start_silence_s
        link = self._links[rank] = Link(channel, rank, self._group.beat_s, self._lose)
        listener = threading.Thread(target=self._listen, args=(link,), name="fnx-followers", daemon=True)
        listener.start()
        self._listeners.append(listener)

    def _listen(self, link: Link) -> None:
        try:
            while True:
                match link.receive():
                    case Ready():
                        self._ready.release()
                    case Restored(whole):
                        self._restored.put(whole)
                    case Stop():
                        self._on_stop()
                    case message:
                        logger.warning("rank %d sent a %s out of turn", link.other, type(message).__name__)
        except RankLost:
            pass  # the link has told whoever must know

    def _lose(self, why: str) -> None:
        with self._once:
            first, self.lost = self.lost is None, self.lost or why
        if first:
            self._on_lost(why)


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
