"""Host side: a server of two processes on this machine, started, watched and ended by a script."""

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments.server_process import SERVE, ServerProcess

RANKS = (0, 1)


class PairError(RuntimeError):
    """The two processes did not come up; the message holds the ends of their logs."""


class Pair:
    """Two processes of `python -m fnx_jax.serve`, one device each.

    Args: flags: for both. of_rank: more flags for each.
    processes: by rank. url: of rank 0, once `wait_ready` has returned.
    """

    def __init__(self, flags: Sequence[str], of_rank: Sequence[Sequence[str]] = ((), ())):
        self._folder = tempfile.TemporaryDirectory(prefix="fnx_pair")
        self.url = ""
        shared = [
            *SERVE,
            f"--coordinator=127.0.0.1:{_free_port()}",
            "--ranks=2",
            "--port=0",
            *flags,
        ]
        self._servers = [
            ServerProcess([*shared, f"--rank={rank}", *of_rank[rank]], Path(self._folder.name) / f"rank{rank}.log")
            for rank in RANKS
        ]
        self.processes = [server.process for server in self._servers]

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        return self._servers[rank].log()

    def wait_ready(self, timeout_s: float) -> str:
        """Waits until rank 0 serves; returns its URL. Raises PairError."""
        end_s = time.monotonic() + timeout_s
        while not (url := self._servers[0].url()):
            if time.monotonic() > end_s or any(process.poll() is not None for process in self.processes):
                raise PairError("\n".join(f"rank {rank}: {self.log(rank)[-2000:]}" for rank in RANKS))
            time.sleep(0.1)
        self.url = url
        return self.url

    def wait(self, rank: int, timeout_s: float) -> int | None:
        """The exit code of a rank, None where it is still there after `timeout_s`."""
        try:
            return self.processes[rank].wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Kills what is left."""
        for server in self._servers:
            server.kill()
        self._folder.cleanup()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call(url: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 600.0) -> tuple[int, bytes]:
    """One HTTP exchange: status and body. Raises OSError, http.client.HTTPException."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
