"""Host side: rank 0 of a server of several processes: the HTTP side, and an engine whose rounds run on all ranks.

When a rank is lost, running requests fail and the process leaves within FLUSH_S, whatever hangs in it.
"""

import os
import threading
from collections.abc import Callable

from fnx_jax.engine.request import Request, Sink
from fnx_jax.engine.status import EngineStatus
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.group import Group, spell_address
from fnx_jax.ranks.leader import Leader
from fnx_jax.serve.client import EngineClient
from fnx_jax.serve.load import ModelSettings
from fnx_jax.serve.ranks.facts import facts
from fnx_jax.serve.runner import DEVICE, OK, ExitCodes, ServerRun, StartUp
from fnx_jax.serve.service import LoadedModel
from fnx_jax.serve.settings import ServerSettings

FLUSH_S = 1.2


class Leading:
    """What rank 0 has of the others in one run of a server.

    Args: local_device: which of this host's devices is ours. leave: ends the process with a code.
    """

    def __init__(
        self,
        group: Group,
        settings: ModelSettings,
        local_device: int,
        leave: Callable[[int], None] = os._exit,
    ):
        self.leader: Leader | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self._group, self._settings, self._local_device, self._leave = group, settings, local_device, leave

    def open(self) -> Leader:
        """Lets the other ranks in and joins the devices. Raises Disagreement, RankLost, ValueError."""
        from fnx_jax.ranks.distributed import meet, start_distributed

        where = spell_address(self._group.host, self._group.port)
        waiting = f"Waiting for {self._group.ranks - 1} more of {self._group.ranks} ranks at {where}."
        self.leader = Leader(self._group, facts(self._settings), self._lose, lambda: self.on_stop())
        try:
            self.leader.let_in(lambda: say(waiting))
        except OSError as error:
            raise ValueError(f"--coordinator={where}: {error.strerror or error}") from error
        start_distributed(self._group, self.leader.offer_service(self._group.host), self._local_device)
        meet(self._group.ranks)
        return self.leader

    def end(self, code: int) -> None:
        """Takes the other ranks along."""
        if self.leader is not None:
            self.leader.end(None if code == OK else f"rank 0 ends with code {code}")

    def _lose(self, why: str) -> None:
        say(f"{why}.")
        # A thread that waits for the lost rank's device cannot be interrupted.
        timer = threading.Timer(FLUSH_S, self._leave, (DEVICE,))
        timer.daemon = True
        timer.start()


class LedEngine:
    """An engine that has failed as soon as a rank is lost, even while its thread hangs in a round."""

    def __init__(self, engine: EngineClient, leader: Leader):
        self._engine, self._leader = engine, leader

    @property
    def failed(self) -> BaseException | None:
        """What ended the engine, None while it works."""
        return RankLost(self._leader.lost) if self._leader.lost is not None else self._engine.failed

    def submit(self, request: Request, sink: Sink) -> None:
        """As the engine's."""
        self._engine.submit(request, sink)

    def cancel(self, request_id: str) -> None:
        """As the engine's."""
        self._engine.cancel(request_id)

    def status(self) -> EngineStatus:
        """As the engine's."""
        return self._engine.status()

    def drain(self, timeout_s: float) -> bool:
        """As the engine's."""
        return self._engine.drain(timeout_s)

    def stop(self) -> None:
        """As the engine's."""
        self._engine.stop()


def run_leading(
    leading: Leading, settings: ServerSettings, load: Callable[[StartUp], LoadedModel], exit_codes: ExitCodes
) -> int:
    """Serves as rank 0; `load` opens `leading`. Returns: the exit code, for a process that must leave at once."""
    run = ServerRun(settings, load, exit_codes, say)
    leading.on_stop = run.stop
    code = run.run()
    leading.end(code)
    return code


def say(line: str) -> None:
    """Shows a line to the operator, at once."""
    print(line, flush=True)
