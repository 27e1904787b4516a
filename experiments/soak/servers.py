"""Host side: the two servers that a soak asks: one with everything on, and one that starts every prompt afresh."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.http_client import Client, HttpError, client_for
from experiments.server_process import SERVE, ServerProcess, StartError

PLAIN = ("--nodrafts", "--prompt_cache_gib=0", "--lanes=1")


class SoakError(RuntimeError):
    """A server that did not start, or did not answer; the message says which and why."""


@dataclass(frozen=True)
class Servers:
    """served: drafts, keeps states, has several lanes. plain: one lane, no drafts, keeps nothing.

    fresh: like plain, a new process each time it is entered.
    """

    served: Client
    plain: Client
    fresh: Callable[[], AbstractContextManager[Client]]


@contextmanager
def both(
    shared: Sequence[str], served: Sequence[str], start_s: float, command: Sequence[str] = SERVE
) -> Iterator[Servers]:
    """Starts the two and ends them, whatever happens.

    Args: shared, served: flags of both, and of the first alone. start_s: how long a start may take.
    Raises: SoakError.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fnx_soak")))
        processes: dict[str, ServerProcess] = {}

        def start(name: str, flags: Sequence[str]) -> ServerProcess:
            process = processes[name] = ServerProcess([*command, *shared, *flags, "--port=0"], folder / name)
            stack.callback(process.stop)
            return process

        @contextmanager
        def fresh() -> Iterator[Client]:
            process = start("fresh", PLAIN)
            yield client_for(process.wait_ready(start_s), None)
            process.stop()

        try:
            pair = start("served", served), start("plain", PLAIN)
            clients = [client_for(process.wait_ready(start_s), None) for process in pair]
            yield Servers(clients[0], clients[1], fresh)
        except StartError as error:
            raise SoakError(str(error)) from error
        except HttpError as error:
            ends = "\n".join(f"{name}: {process.end()}" for name, process in processes.items())
            raise SoakError(f"{error}; the servers' logs end:\n{ends}") from error
