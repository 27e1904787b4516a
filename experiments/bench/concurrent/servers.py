"""Host side: where an arm's requests go: fresh servers, or one that runs already. Read next: measure.py."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from checkpoints.commands import UsageError
from checkpoints.errors import CheckpointError
from experiments.bench.concurrent.plan import OFF_SERVER, Plan
from experiments.bench.concurrent.prompts import PROMPTS
from experiments.http_client import Client, HttpError, client_for
from experiments.server_process import SERVE, ServerProcess, StartError

Open = Callable[[str], AbstractContextManager[Client]]
"""By arm: a client of the server that is to be asked, for as long as it is needed."""


class ServerFailed(RuntimeError):
    """A server that did not start, or did not answer; the message says which and why."""


def fresh_servers(flags: Sequence[str], start_s: float, command: Sequence[str] = SERVE) -> Open:
    """Starts a server for each block and ends it, whatever happens. flags: for all. start_s: a start's time at most."""

    @contextmanager
    def open_arm(arm: str) -> Iterator[Client]:
        own = ["--port=0", *(["--nodrafts"] if arm == OFF_SERVER else [])]
        with tempfile.TemporaryDirectory(prefix="fnx_bench") as folder:
            server = ServerProcess([*command, *flags, *own], Path(folder) / "log")
            try:
                yield client_for(server.wait_ready(start_s), None)
            except StartError as error:
                raise ServerFailed(f"arm {arm}: {error}") from error
            except HttpError as error:
                raise ServerFailed(f"arm {arm}: {error}; the server's log ends:\n{server.end()}") from error
            finally:
                server.stop()

    return open_arm


def running_server(url: str, key: str | None) -> Open:
    """Asks a server that runs already, for the arms that one server can give."""

    @contextmanager
    def open_arm(arm: str) -> Iterator[Client]:
        try:
            yield client_for(url, key)
        except HttpError as error:
            raise ServerFailed(f"arm {arm}: {error}") from error

    return open_arm


def check_fresh(plan: Plan, model: str, lanes: int, context: int) -> None:
    """Raises UsageError where the requests do not fit into servers that are to be started."""
    from fnx_jax.serve.assets import read_text_assets  # here, because jax comes with it

    try:
        tokenizer = read_text_assets(model).tokenizer
    except CheckpointError as error:
        raise UsageError(f"--model={model}: {error}") from error
    check_fits(plan, lanes, context, lambda prompt: len(tokenizer.encode(prompt, False)))


def check_running(plan: Plan, client: Client) -> None:
    """The same of a server that runs, as far as it tells its limits. Raises UsageError where it cannot be asked."""
    if OFF_SERVER in plan.arms:
        raise UsageError(f"--arms: {OFF_SERVER} is a server of its own, which --url is not")
    try:
        info = client.info()
        model = client.model()
        lanes, context = info.get("config", {}).get("lanes"), info.get("context")

        def count(prompt: str) -> int:
            told = client.read("/tokenize", {"model": model, "prompt": prompt, "add_special_tokens": False})
            return json.loads(told)["count"]

        check_fits(plan, lanes, context, count)
    except (HttpError, ValueError, KeyError) as error:
        raise UsageError(f"--url: {error}") from error


def check_fits(plan: Plan, lanes: int | None, context: int | None, count: Callable[[str], int]) -> None:
    """Raises UsageError, naming what is too large. lanes, context: of a server, None where unknown. count: tokens."""
    for level in plan.levels:
        if lanes is not None and level > lanes:
            raise UsageError(f"--levels: {level} streams, more than the {lanes} lanes of the server")
    if context is None:
        return
    for workload in plan.workloads:
        for i, prompt in enumerate(PROMPTS[workload]):
            if (tokens := count(prompt)) + plan.max_tokens > context:
                raise UsageError(
                    f"prompt {i} of workload {workload} has {tokens} tokens; with --max_tokens={plan.max_tokens} "
                    f"that is more than the context of {context}"
                )


def counters(client: Client) -> dict[str, float]:
    """A server's running totals; nothing where it has none."""
    try:
        return client.totals()
    except HttpError:
        return {}
