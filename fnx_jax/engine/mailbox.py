"""Host side: where other threads leave requests and cancellations, and where the engine leaves emissions.

Everything here is guarded by one condition, `changed`, which is notified whenever a waiter might be interested. No
sink is called with it held. Read next: loop.py.
"""

import logging
import threading
from collections.abc import Iterable

from fnx_jax.engine.lane import Waiting
from fnx_jax.engine.request import Emission, EngineClosed, EngineError, QueueFull, Sink

logger = logging.getLogger(__name__)


class Mailbox:
    """The requests that have not had their last emission, with their sinks.

    places: how many there may be. closed: why no more are taken, None while they are.
    """

    def __init__(self, places: int):
        self.changed = threading.Condition()
        self.places = places
        self.closed: str | None = None
        self._arrivals: list[Waiting] = []
        self._cancels: set[str] = set()
        self._sinks: dict[str, Sink] = {}
        self._speaking = False  # a last emission is on its way

    def __contains__(self, request_id: str) -> bool:
        """Whether the request is here and has not had its last emission."""
        return request_id in self._sinks

    @property
    def arrivals(self) -> int:
        """Requests that the engine has not looked at yet."""
        return len(self._arrivals)

    @property
    def pending(self) -> bool:
        """Whether the engine has something to collect."""
        return bool(self._arrivals or self._cancels)

    @property
    def idle(self) -> bool:
        """Whether every request has had its last emission."""
        return not self._sinks and not self._speaking

    def close(self, reason: str) -> None:
        """Refuses requests from now on."""
        with self.changed:
            self.closed = reason
            self.changed.notify_all()

    def accept(self, waiting: Waiting, sink: Sink, bounded: bool = True) -> None:
        """Takes a request.

        Args:
          bounded: whether `places` applies.
        Raises, taking nothing: EngineClosed, QueueFull, or EngineError where the id is in use.
        """
        request_id = waiting.request.id
        with self.changed:
            if self.closed is not None:
                raise EngineClosed(self.closed)
            if request_id in self._sinks:
                raise EngineError(f"id: a request {request_id!r} is being served")
            if bounded and len(self._sinks) >= self.places:
                raise QueueFull(
                    f"queue: {len(self._sinks)} requests are waiting or being served, {self.places} at most"
                )
            self._sinks[request_id] = sink
            self._arrivals.append(waiting)
            self.changed.notify_all()

    def cancel(self, ids: Iterable[str]) -> None:
        """Asks for requests to be ended; those that are not here are left alone."""
        with self.changed:
            self._cancels.update(request_id for request_id in ids if request_id in self._sinks)
            self.changed.notify_all()

    def cancel_all(self) -> None:
        """Asks for all of them to be ended."""
        with self.changed:
            self.cancel(list(self._sinks))

    def collect(self) -> tuple[list[Waiting], set[str]]:
        """Returns the requests and the cancellations that came since the last call."""
        with self.changed:
            arrivals, self._arrivals = self._arrivals, []
            cancels, self._cancels = self._cancels, set()
            return arrivals, cancels

    def live(self) -> list[str]:
        """Returns the ids of the requests that have not had their last emission."""
        with self.changed:
            return list(self._sinks)

    def deliver(self, emission: Emission) -> None:
        """Hands an emission to its sink; one that raises is logged and has its request cancelled."""
        request_id, last = emission.request_id, emission.finish is not None
        with self.changed:
            sink = self._sinks[request_id]
            if last:  # from here on the id may be used again
                del self._sinks[request_id]
                self._cancels.discard(request_id)
                self._speaking = True
        try:
            sink(emission)
        except Exception:
            logger.exception("the sink of request %r failed", request_id)
            if not last:
                self.cancel([request_id])
        finally:
            if last:
                with self.changed:
                    self._speaking = False
                    self.changed.notify_all()
