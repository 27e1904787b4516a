"""Host side: the two servers that a soak asks: one with everything on, and one that starts every prompt afresh."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.http_client import Client, HttpError, client_for
from experiments.server_process import SERVE, ServerProcess, StartError

PLAIN = ("--nodrafts", "--prompt_cache_gib=0", "--lanes=1")


class SoakError(RuntimeError):
    """A server that did not start, or did not answer; the message says which and why."""


@dataclass(frozen=True)
class Servers:
    """served: drafts, keeps states, has several lanes. plain: one lane, no drafts, keeps nothing."""

    served: Client
    plain: Client


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
        processes = {
            name: ServerProcess([*command, *shared, *flags, "--port=0"], folder / name)
            for name, flags in (("served", served), ("plain", PLAIN))
        }
        for process in processes.values():
            stack.callback(process.stop)
        try:
            clients = {name: client_for(process.wait_ready(start_s), None) for name, process in processes.items()}
            yield Servers(**clients)
        except StartError as error:
            raise SoakError(str(error)) from error
        except HttpError as error:
            ends = "\n".join(f"{name}: {process.end()}" for name, process in processes.items())
            raise SoakError(f"{error}; the servers' logs end:\n{ends}") from error
