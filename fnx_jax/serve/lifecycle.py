"""Host side: how a server ends: by signal, by a lost device, or by the caller. Read next: runner.py."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from fnx_jax.serve.service import LoadedModel, Service

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_S = 0.2
FLUSH_S = 5.0


class StopSignals:
    """The first stop signal asks for an orderly end, the second leaves at once.

    Args: leave: ends the process with a code.
    """

    def __init__(self, leave: Callable[[int], None] = os._exit):
        self.asked = asyncio.Event()
        self._leave, self._signalled = leave, False

    def ask(self, number: int) -> None:
        """What a signal does. On the event loop."""
        if self._signalled:
            self._leave(128 + number)
        self._signalled = True
        self.asked.set()

    def install(self) -> None:
        """Takes over SIGINT and SIGTERM, where this is the main thread; elsewhere there are none."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.ask, number)

    def remove(self) -> None:
        """Gives the signals back."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)


async def drain(service: Service, model: LoadedModel) -> bool:
    """Takes no more requests, lets admitted ones finish within the limit, ends the others.

    Returns: whether all finished by themselves.
    """
    service.state = "draining"
    finished = await asyncio.to_thread(model.engine.drain, service.settings.drain_s)
    await flushed(service)
    return finished


async def flushed(service: Service) -> None:
    """Waits until the open streams have passed on what the engine gave them, but not for a stalled client."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + FLUSH_S
    while service.streams and loop.time() < end_s:
        await asyncio.sleep(0.02)


async def lost(model: LoadedModel) -> str:
    """Returns what ended the engine, once something has."""
    while model.engine.failed is None:
        await asyncio.sleep(WATCH_S)
    return str(model.engine.failed)
