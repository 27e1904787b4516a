"""Host side: every rank of a server but 0: no HTTP, the same model, and rank 0's calls in rank 0's order.

A thread does the work; the main one waits for signals, which a device would hold up.
"""

import os
import signal
import threading
from collections.abc import Callable

from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.follower import follow, join, service_port
from fnx_jax.ranks.group import Group, spell_address
from fnx_jax.ranks.link import Link
from fnx_jax.ranks.messages import Left, Stop, most_bytes
from fnx_jax.ranks.relay import Relay
from fnx_jax.serve.lifecycle import SIGNALS
from fnx_jax.serve.load import ModelSettings, load_warm, use_compilation_cache
from fnx_jax.serve.progress import Progress
from fnx_jax.serve.ranks.facts import facts
from fnx_jax.serve.ranks.leading import say
from fnx_jax.serve.runner import DEVICE, OK, ExitCodes

LOOK_S = 0.1
END_S = 1.0


class Following:
    """One run of a follower. `run` blocks and returns the exit code.

    Args: exit_codes: as in run_server. leave: ends the process with a code.
    """

    def __init__(
        self,
        group: Group,
        settings: ModelSettings,
        local_device: int,
        exit_codes: ExitCodes,
        quiet: bool = False,
        leave: Callable[[int], None] = os._exit,
    ):
        self._group, self._settings, self._local_device = group, settings, local_device
        self._exit_codes, self._quiet, self._leave = exit_codes, quiet, leave
        self._link: Link | None = None
        self._code, self._done = DEVICE, threading.Event()
        self._asked = False
        self._compilations: Callable[[], int] = lambda: 0

    def run(self) -> int:
        """Follows to the end."""
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._ask(number))
        threading.Thread(target=self._work, name="fnx-follow", daemon=True).start()
        while not self._done.wait(LOOK_S):
            if self._link is not None and self._link.ended and not self._done.wait(END_S):
                return OK  # rank 0 has stopped while this rank was still loading
        return self._code

    def _ask(self, number: int) -> None:
        """The first signal asks rank 0 to stop all ranks, the second leaves at once."""
        if self._asked:
            self._leave(128 + number)
        self._asked = True
        if self._link is None:
            self._leave(OK)
            return
        try:
            self._link.send(Stop())
        except RankLost:
            pass  # the link ends the process

    def _work(self) -> None:
        try:
            self._follow()
            self._code = OK
        except BaseException as error:
            code = next((code for kind, code in self._exit_codes if isinstance(error, kind)), DEVICE)
            # Rank 0 may stop in order while this rank is still starting, which then fails.
            self._code = OK if self._link is not None and self._link.ended else code
            say(f"{type(error).__name__}: {error}")
            self._tell(f"{type(error).__name__}: {error}")
        self._done.set()

    def _follow(self) -> None:
        from fnx_jax.compilations import CompilationCounter
        from fnx_jax.ranks.distributed import meet, start_distributed

        group, progress = self._group, Progress(self._quiet)
        where = spell_address(group.host, group.port)
        use_compilation_cache(self._settings)
        known = facts(self._settings)
        say(f"Rank {group.rank} of {group.ranks} looks for rank 0 at {where}.")
        link = self._link = join(group, known, self._lose, lambda: self._compilations())
        start_distributed(group, Relay(group.host, service_port(link, group.join_s)).address, self._local_device)
        meet(group.ranks)
        model = load_warm(self._settings, progress)
        progress.close()
        counter = CompilationCounter()
        self._compilations = lambda: counter.count
        link.allow(most_bytes(model.steps))
        say(f"Ready: rank {group.rank} follows rank 0 at {where}.")
        follow(link, model.steps, group.silence_s)

    def _tell(self, why: str) -> None:
        if self._link is not None:
            try:
                self._link.expect_end()
                self._link.send(Left(why[:500]))
            except RankLost:
                pass  # nobody is there to be told

    def _lose(self, why: str) -> None:
        say(f"{why}.")
        self._leave(DEVICE)
