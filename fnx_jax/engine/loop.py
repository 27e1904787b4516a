"""Host side: the engine. Owns the rounds, on a thread for a server or on the caller's for the library.

mailbox.py is its door to other threads, rounds.py what it does in between. Read next: steps.py for what a device
must do, fake.py for one that is none.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from fnx_jax.engine.drafting.streams import Drafter
from fnx_jax.engine.lane import Waiting
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.mailbox import Mailbox
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.records import RoundLog, RoundRecord
from fnx_jax.engine.request import Emission, EngineClosed, EngineError, Finish, Request, Sink
from fnx_jax.engine.rounds import run_round
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.status import EngineStatus
from fnx_jax.engine.steps import Steps

logger = logging.getLogger(__name__)


class Engine:
    """Serves requests: one owner of the rounds, any number of threads that submit and cancel.

    With `start`, a thread of the engine's own runs the rounds and calls the sinks. Without, `run` and `drain` do it
    on the calling thread. A sink gets a reply's emissions in order and must not wait for the engine; one that raises
    has its request cancelled. Every request that was accepted gets exactly one last emission.

    drafts, drafter: as in Scheduler.
    """

    def __init__(
        self,
        steps: Steps,
        config: EngineConfig | None = None,
        *,
        on_record: Callable[[RoundRecord], None] | None = None,
        drafts: Drafts | None = None,
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._steps, self._clock = steps, clock
        self._scheduler = Scheduler(steps, config, on_record=on_record, drafts=drafts, drafter=drafter, clock=clock)
        self._mailbox = Mailbox(self._scheduler.places)
        self._driver = threading.Lock()  # held by whoever runs rounds
        self._thread: threading.Thread | None = None
        self._draining = self._stopping = self._put_away = False
        self._failed: BaseException | None = None
        self._status = self._scheduler.status()

    def start(self) -> "Engine":
        """Starts the thread. Raises EngineClosed after `drain` or `stop`, EngineError where it was started before."""
        if self._mailbox.closed is not None:
            raise EngineClosed(self._mailbox.closed)
        if self._thread is not None:
            raise EngineError("start: the engine's thread was started before")
        self._thread = threading.Thread(target=self._main, name="fnx-engine", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> "Engine":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def failed(self) -> BaseException | None:
        """What a round raised; the engine takes no requests after it."""
        return self._failed

    @property
    def records(self) -> RoundLog:
        """The newest round records."""
        return self._scheduler.records

    def status(self) -> EngineStatus:
        """Returns the numbers as of the begin or the end of the newest round; never waits for the engine."""
        waiting = self._status.waiting + self._mailbox.arrivals
        failed = None if self._failed is None else _describe(self._failed)
        return replace(self._status, waiting=waiting, closed=self._mailbox.closed is not None, failed=failed)

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request whose emissions go to `sink`. From any thread.

        Raises, before anything is queued: EngineError for a request that cannot be served, QueueFull, EngineClosed.
        """
        self._scheduler.check(request)
        self._mailbox.accept(Waiting(request, self._clock()), sink)

    def cancel(self, request_id: str) -> None:
        """Ends a request with "abort" before the next round; one that has ended, or is unknown, is left alone."""
        self._mailbox.cancel([request_id])

    def run(self, requests: Iterable[Request]) -> dict[str, list[Emission]]:
        """Serves requests to their end and returns their emissions by id. The queue's limit does not apply.

        Raises: as `submit`, before anything runs. An interrupted run leaves none of its requests behind.
        """
        requests = list(requests)
        for request in requests:
            self._scheduler.check(request)
        replies: dict[str, list[Emission]] = {}
        try:
            for request in requests:
                emissions: list[Emission] = []
                self._mailbox.accept(Waiting(request, self._clock()), emissions.append, bounded=False)
                replies[request.id] = emissions
            self._until(lambda: not any(request_id in self._mailbox for request_id in replies))
        finally:
            self._abandon(replies)
        return replies

    def drain(self, timeout_s: float) -> bool:
        """Refuses new requests, ends queued ones with "abort", and lets admitted ones finish for `timeout_s`.

        Those left after it are ended with "abort" before their next round. Not to be called from a sink.
        Returns: whether no admitted request had to be ended.
        """
        self._draining = True
        self._mailbox.close("the engine is closed to new requests")
        finished = self._until(lambda: self._mailbox.idle, timeout_s)
        if not finished:
            self._mailbox.cancel_all()
            self._until(lambda: self._mailbox.idle)
        return finished

    def stop(self) -> None:
        """Ends every request with "abort" after the round that is running, then the thread. May be called again.

        Waits until kept states are in files, where there is a place for them.
        """
        self._stopping = True
        self._mailbox.close("the engine is stopped")
        if self._thread is None:
            self._abandon(self._mailbox.live())
            with self._driver:
                self._close()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _until(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits for the thread to make `done` true, or runs the rounds here where there is none."""
        if self._thread is not None:
            with self._mailbox.changed:
                return self._mailbox.changed.wait_for(done, timeout_s)
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        with self._driver:
            while not done() and (deadline_s is None or self._clock() < deadline_s):
                self._turn()
        return done()

    def _abandon(self, ids: Iterable[str]) -> None:
        """Cancels what is left of `ids`; without a thread, at once."""
        self._mailbox.cancel(ids)
        if self._thread is None:
            with self._driver:
                self._collect()

    def _main(self) -> None:
        with self._driver:
            try:
                while self._wait_for_work():
                    self._turn()
            except BaseException as error:
                self._fail(error)
            self._mailbox.cancel_all()
            self._collect()
            self._close()

    def _close(self) -> None:
        """Lets the scheduler put things away, once; what goes wrong with that costs what was to be put away."""
        if not self._put_away:
            self._put_away = True
            try:
                self._scheduler.close(orderly=self._failed is None)
            except Exception:
                logger.exception("the engine could not put everything away")
            self._status = self._scheduler.status()

    def _wait_for_work(self) -> bool:
        ended, work = (lambda: self._stopping or self._failed is not None), self._scheduler.has_work
        with self._mailbox.changed:
            self._mailbox.changed.wait_for(lambda: ended() or self._mailbox.pending or work())
            return not ended()

    def _turn(self) -> None:
        """Arrivals, cancellations, one round. A round that raises ends every request, and the engine."""
        try:
            self._collect()
            for emission in self._scheduler.admit():
                self._deliver(emission)
            self._status = self._scheduler.status()  # a round may be long: show who takes part in it
            for emission in run_round(self._steps, self._scheduler, self._clock):
                self._deliver(emission)
        except BaseException as error:
            if isinstance(error, Exception) or threading.current_thread() is self._thread:
                self._fail(error)
            else:  # the caller was interrupted: emissions may be lost, so no reply goes on as if nothing was
                self._end_all(f"interrupted: {_describe(error)}")
                raise
        self._status = self._scheduler.status()

    def _collect(self) -> None:
        arrivals, cancels = self._mailbox.collect()
        for waiting in arrivals:
            self._scheduler.enqueue(waiting)
        if self._draining:
            cancels.update(self._scheduler.queued())
        for emission in self._scheduler.cancel(cancels):
            self._deliver(emission)

    def _fail(self, error: BaseException) -> None:
        logger.error("the engine failed", exc_info=error)
        message = f"the engine failed: {_describe(error)}"
        self._failed = error
        self._mailbox.close(message)
        self._end_all(message)

    def _end_all(self, message: str) -> None:
        """Ends every request with an error, also one whose last emission was lost with the round."""
        live = self._mailbox.live()
        self._collect()
        for emission in self._scheduler.fail(message):
            self._deliver(emission)
        for request_id in live:
            if request_id in self._mailbox:
                self._deliver(Emission(request_id, finish=Finish("error", error=message)))

    def _deliver(self, emission: Emission) -> None:
        if emission.finish is not None:  # whoever hears of the end must find the numbers up to date
            self._status = self._scheduler.status()
        self._mailbox.deliver(emission)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
