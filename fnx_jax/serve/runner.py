"""Host side: one server process from bind to exit. The port is bound first, the model loads beside it.

`run_server` is what a command calls. Read next: service.py, lifecycle.py.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn

from fnx_jax.engine.records import RoundRecord
from fnx_jax.serve.app import build_app
from fnx_jax.serve.lifecycle import FLUSH_S, StopSignals, drain, flushed, lost
from fnx_jax.serve.progress import Progress
from fnx_jax.serve.service import LoadedModel, Service
from fnx_jax.serve.settings import ServerSettings

OK, USAGE, CHECKPOINT, DOES_NOT_FIT, DEVICE = 0, 2, 3, 4, 5
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class StartUp:
    """What a loader may use. progress: (phase, done bytes, total bytes). on_round: for the engine's `on_record`."""

    progress: Progress
    on_round: Callable[[RoundRecord], None]


Load = Callable[[StartUp], LoadedModel]
ExitCodes = Sequence[tuple[type[BaseException], int]]


def run_server(
    settings: ServerSettings, load: Load, exit_codes: ExitCodes = (), say: Callable[[str], None] = print
) -> int:
    """Serves until a stop signal or a lost device.

    Args:
      load: runs on a thread of its own; returns a model whose engine is started and warmed up, or raises.
      exit_codes: (exception type, exit code) for what `load` raises, first match wins; anything else is a device
        fault. say: shows a line to the operator.
    Returns: the exit code: 0 ok, 2 usage, 3 checkpoint, 4 does not fit, 5 device.
    """
    run = ServerRun(settings, load, exit_codes, say)
    code = run.run()
    if run.loading:
        os._exit(code)  # a loader can't be interrupted, and there is nothing of it to save
    return code


class ServerRun:
    """One run of a server. `run` blocks; the rest may be used from other threads.

    bound, ready: set once the port is bound and once requests are served. address: host and port after `bound`.
    service: its state.
    """

    def __init__(
        self,
        settings: ServerSettings,
        load: Load,
        exit_codes: ExitCodes = (),
        say: Callable[[str], None] = print,
        leave: Callable[[int], None] = os._exit,
    ):
        self.service = Service(settings)
        self.bound, self.ready = threading.Event(), threading.Event()
        self.address: tuple[str, int] = (settings.host, settings.port)
        self._settings, self._load, self._exit_codes = settings, load, exit_codes
        self._say, self._leave = say, leave
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals: StopSignals | None = None

    @property
    def loading(self) -> bool:
        """Whether the loader still runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def url(self) -> str:
        """Where the server listens."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> int:
        """Serves to the end. Returns: the exit code."""
        try:
            listener = _listen(self._settings)
        except OSError as error:
            self._say(f"Can't listen on {self._settings.host}:{self._settings.port}: {error.strerror or error}")
            return USAGE
        with listener:
            self.address = listener.getsockname()[:2]
            config = uvicorn.Config(
                build_app(self.service),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=int(FLUSH_S),
            )
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                return runner.run(self._main(_Server(config), listener))

    def stop(self) -> None:
        """Asks for an orderly end, as the first stop signal does; may be called again."""
        if self._loop is not None and self._signals is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._signals.asked.set)

    async def _main(self, server: "_Server", listener: socket.socket) -> int:
        self._loop, self._signals = asyncio.get_running_loop(), StopSignals(self._leave)
        self._signals.install()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            self._announce()
            return await self._until_stopped(serving)
        finally:
            self._signals.remove()
            server.should_exit = True
            await serving

    async def _until_stopped(self, serving: asyncio.Task) -> int:
        assert self._signals is not None
        stop = asyncio.create_task(self._signals.asked.wait())
        loading = self._start_loading()
        await asyncio.wait((stop, loading, serving), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            self.service.state = "draining"
            return OK
        try:
            model = loading.result()
            self.service.become_ready(model)
        except Exception as error:
            stop.cancel()
            return self._refused(error)
        return await self._serve(model, stop, serving)

    async def _serve(self, model: LoadedModel, stop: asyncio.Task, serving: asyncio.Task) -> int:
        self._say(self._ready_line(model))
        self.ready.set()
        failure = asyncio.create_task(lost(model))
        await asyncio.wait((stop, failure, serving), return_when=asyncio.FIRST_COMPLETED)
        if not failure.done():
            drained = asyncio.create_task(drain(self.service, model))
            await asyncio.wait((drained, failure), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if failure.done():
            self.service.lose(f"the device was lost: {failure.result()}")
            self._say(f"The device was lost: {failure.result()}")
            await flushed(self.service)
            return DEVICE
        failure.cancel()
        await asyncio.to_thread(model.engine.stop)
        return OK

    def _start_loading(self) -> asyncio.Future[LoadedModel]:
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        start = StartUp(Progress(self._settings.quiet), self.service.metrics.note_round)

        def settle(model: LoadedModel | None, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(model)

        def work() -> None:
            model, fault = None, None
            try:
                model = self._load(start)
            except BaseException as error:  # told to the event loop, whatever it is
                fault = error if isinstance(error, Exception) else RuntimeError(f"loading ended with {error!r}")
            finally:
                start.progress.close()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, model, fault)

        # A daemon: a loader that hangs must not keep a stopped server alive.
        self._thread = threading.Thread(target=work, name="fnx-load", daemon=True)
        self._thread.start()
        return future

    def _refused(self, error: Exception) -> int:
        self.service.state = "failed"
        code = next((code for kind, code in self._exit_codes if isinstance(error, kind)), DEVICE)
        self._say(f"{type(error).__name__}: {error}")
        return code

    def _announce(self) -> None:
        self.bound.set()
        if not self._settings.quiet:
            self._say(f"Listening on {self.url}; /health answers 503 until the model is loaded.")
        if not self._settings.api_keys and self._settings.host not in LOOPBACK:
            self._say(f"Warning: {self._settings.host} can be reached by others, and no API key is set.")

    def _ready_line(self, model: LoadedModel) -> str:
        name = self.service.served_names[0]
        key = " -H 'Authorization: Bearer YOUR_KEY'" if self._settings.api_keys else ""
        body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        return (
            f"Ready: {name} at {self.url}/v1, context {model.context}\n"
            f"  curl {self.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
        )


class _Server(uvicorn.Server):
    """A server whose signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
