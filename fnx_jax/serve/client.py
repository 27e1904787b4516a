"""Host side: the engine as the server sees it, and the bridge from its thread to the event loop.

The engine never waits: a sink puts an emission into a list and leaves. Read next: answer.py, which reads it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fnx_jax.engine.request import Emission, Finish, Request, Sink
from fnx_jax.engine.status import EngineStatus


class EngineClient(Protocol):
    """What the server needs of an engine; `fnx_jax.engine.loop.Engine` is one."""

    @property
    def failed(self) -> BaseException | None:
        """What ended the engine, None while it works."""
        ...

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request, or raises EngineError, QueueFull, EngineClosed. Sinks run on the engine's thread."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ends a request before the next round; an unknown one is left alone."""
        ...

    def status(self) -> EngineStatus:
        """Numbers of the moment, without waiting for a round."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Refuses new requests and waits for admitted ones, then ends the rest. Whether all finished by themselves."""
        ...

    def stop(self) -> None:
        """Ends everything."""
        ...


@dataclass(frozen=True)
class Arrival:
    """An emission for one choice, and when the engine made it, in seconds of time.perf_counter."""

    choice: int
    emission: Emission
    at_s: float


class EmissionStream:
    """The emissions of one HTTP request's engine requests, choice by choice in order.

    Created, started, read and closed on the event loop; only the sinks run elsewhere.

    Args: bound: emissions that may wait for the reader, None for any number.
    """

    def __init__(self, engine: EngineClient, requests: Sequence[Request], bound: int | None = None):
        self.stalled = asyncio.Event()
        self._engine = engine
        self._requests = tuple(requests)
        self._bound = bound
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._live: dict[int, Request] = {}
        self._closed = False

    def start(self) -> None:
        """Submits every request, or none.

        Raises: as the engine's submit.
        """
        try:
            for index, request in enumerate(self._requests):
                self._engine.submit(request, self._sink(index))
                self._live[index] = request
        except BaseException:
            self.close()
            raise

    async def next(self, timeout_s: float | None = None) -> Arrival | None:
        """The next emission; None once every request has ended. Raises TimeoutError after `timeout_s` of silence."""
        while True:
            with self._lock:
                arrival = self._waiting.popleft() if self._waiting else None
                if arrival is None:
                    self._ready.clear()
            if arrival is not None:
                break
            if not self._live:
                return None
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        if arrival.emission.finish is not None:
            self._live.pop(arrival.choice, None)
        return arrival

    def fail(self, message: str) -> None:
        """Ends what hasn't ended, when the engine can't any more."""
        for index, request in self._live.items():
            self._put(index, Emission(request.id, finish=Finish("error", error=message)))

    def close(self) -> None:
        """Cancels what hasn't ended; nothing is received afterwards."""
        self._closed = True
        for request in self._live.values():
            self._engine.cancel(request.id)
        self._live.clear()

    def _sink(self, index: int) -> Sink:
        return lambda emission: self._put(index, emission)

    def _put(self, index: int, emission: Emission) -> None:
        if self._closed:
            return
        with self._lock:
            full = self._bound is not None and len(self._waiting) >= self._bound * len(self._requests)
            if not full:
                self._waiting.append(Arrival(index, emission, time.perf_counter()))
        self._wake(self.stalled if full else self._ready)

    def _wake(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:  # the loop is gone: nobody reads any more
            self._closed = True
