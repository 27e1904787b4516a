"""Is a lost rank noticed in time, whatever it is lost by and whatever runs? python -m experiments.faults [--receipt]

Starts a server of two processes for each case, kills or stops one of them, idle or busy, and looks at what is left:
replies that ran, /health, exit codes and the seconds until them. Orderly ends are cases too. Exits 0 where all hold.
"""

import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from experiments.receipts import make_receipt, note_origin, write_receipt
from experiments.server_pair import Pair, call

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_string("json", None, "File for the results.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)
flags.DEFINE_string("only", "", "Run the cases whose name holds this.", flag_values=FLAGS)
flags.DEFINE_float("start_seconds", 900.0, "How long a start may take.", 1.0, flag_values=FLAGS)
flags.DEFINE_multi_string("serve", [], "A flag for both servers; may be repeated.", flag_values=FLAGS)

LIMIT_S, RUNNING_S = 5.0, 300.0
PROMPT = "The quick brown fox"


class NotRunning(RuntimeError):
    """The requests of a busy case do not run, so that nothing can be lost beside them; the message says why."""


@dataclass(frozen=True)
class Case:
    """Send `signals` to `targets` while the server is idle or busy. lost: a fault, else an orderly end."""

    signal: signal.Signals
    targets: tuple[int, ...]
    busy: bool
    lost: bool = True

    @property
    def name(self) -> str:
        """Of the case."""
        ranks = " and ".join(str(rank) for rank in self.targets)
        return f"{self.signal.name} to rank {ranks}, {'busy' if self.busy else 'idle'}"


@dataclass
class Result:
    """What was seen. codes: exit code by rank, None where it stayed; for a stopped rank, after it was let go on.

    seconds: until the surviving ranks had left. replies: how the requests that ran ended. health: statuses of /health
    after the signal, in order. wrong: what did not hold.
    """

    name: str
    codes: dict[str, int | None] = field(default_factory=dict)
    seconds: float = 0.0
    replies: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


CASES = (
    *(
        Case(number, (rank,), busy)
        for number in (signal.SIGKILL, signal.SIGSTOP)
        for rank in (1, 0)
        for busy in (False, True)
    ),
    Case(signal.SIGTERM, (0,), True, lost=False),
    Case(signal.SIGTERM, (1,), False, lost=False),
    Case(signal.SIGINT, (0, 1), False, lost=False),
)


def run_case(case: Case, pair: Pair) -> Result:
    """Runs a case on a server that is ready."""
    result, requests = Result(case.name), Requests(pair.url) if case.busy else None
    if requests is not None:
        try:
            requests.wait_running()
        except NotRunning as error:
            result.wrong = [str(error)]
            return result
    watch = HealthWatch(pair.url)
    begin_s = time.monotonic()
    for rank in case.targets:
        pair.processes[rank].send_signal(case.signal)
    survivors = [rank for rank in (0, 1) if rank not in case.targets] if case.lost else [0, 1]
    for rank in survivors:
        limit_s = (LIMIT_S if case.lost else 60.0) + 5.0  # longer, so that a late exit is told from none
        result.codes[f"rank {rank}"] = pair.wait(rank, max(0.0, begin_s + limit_s - time.monotonic()))
    result.seconds = round(time.monotonic() - begin_s, 2)
    if case.lost and case.signal == signal.SIGSTOP:
        (stopped,) = case.targets
        pair.processes[stopped].send_signal(signal.SIGCONT)
        result.codes[f"rank {stopped} let go on"] = pair.wait(stopped, LIMIT_S)
    result.health = watch.end()
    result.replies = requests.end() if requests is not None else []
    result.wrong = list(judge(case, result))
    return result


def judge(case: Case, result: Result) -> list[str]:
    """What does not hold."""
    wrong = []
    wanted = 5 if case.lost else 0
    for who, code in result.codes.items():
        if code is None or (code != wanted and "let go on" not in who):
            wrong.append(f"{who}: exit code {code}, not {wanted}")
    if case.lost and result.seconds > LIMIT_S:
        wrong.append(f"{result.seconds} s until the end")
    zero_sees = case.lost and case.targets == (1,)
    # Rank 0 may be gone before anybody asks; but once it knows of the loss it takes no more.
    if "503" in result.health and "200" in result.health[result.health.index("503") :]:
        wrong.append(f"/health said {result.health}, 200 after 503")
    if case.busy and zero_sees and result.replies != ["500", "500 in the stream"]:
        wrong.append(f"replies ended with {result.replies}")
    if case.busy and not case.lost and result.replies != ["200", "done"]:
        wrong.append(f"replies ended with {result.replies}")
    return wrong


class Requests:
    """One whole and one streamed request that run for long."""

    def __init__(self, url: str):
        body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "seed": 1, "temperature": 1.0}
        self._ends: list[str] = ["nothing", "nothing"]
        self._url = url
        self._threads = [
            _thread(lambda: self._whole(body)),
            _thread(lambda: self._streamed({**body, "stream": True, "seed": 2})),
        ]

    def wait_running(self, timeout_s: float = RUNNING_S) -> None:
        """Waits until both have a lane and some tokens. Raises NotRunning."""
        end_s = time.monotonic() + timeout_s
        while not self._running():
            if not all(thread.is_alive() for thread in self._threads):
                raise NotRunning(f"a request ended before both ran: {', '.join(self._ends)}")
            if time.monotonic() > end_s:
                raise NotRunning(f"the requests do not run after {timeout_s:g} s")
            time.sleep(0.05)

    def _running(self) -> bool:
        try:
            metrics = call(self._url, "/metrics", timeout_s=RUNNING_S)[1].decode()
        except (OSError, HTTPException) as error:
            raise NotRunning(f"/metrics: {type(error).__name__}: {error}") from error
        values = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if line[:1] != "#"}
        return values["vllm:num_requests_running"] >= 2 and values["vllm:generation_tokens_total"] >= 4

    def end(self) -> list[str]:
        """How each ended."""
        for thread in self._threads:
            thread.join(10)
        return self._ends

    def _whole(self, body: dict) -> None:
        self._ends[0] = _outcome(lambda: str(call(self._url, "/v1/completions", body)[0]))

    def _streamed(self, body: dict) -> None:
        def read() -> str:
            status, said = call(self._url, "/v1/completions", body)
            if status != 200:
                return str(status)
            events = said.decode().split("\n\n")
            data = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
            errors = [json.loads(event)["error"]["code"] for event in data if '"error"' in event]
            whole = "done" if data[-1:] == ["[DONE]"] else "cut"
            return f"{errors[0]} in the stream" if errors else whole

        self._ends[1] = _outcome(read)


class HealthWatch:
    """Asks /health over and over and keeps every answer that differs from the one before."""

    def __init__(self, url: str):
        self._url, self._seen, self._ended = url, [], threading.Event()
        self._thread = _thread(self._watch)

    def end(self) -> list[str]:
        """The answers."""
        self._ended.set()
        self._thread.join(3)
        return list(self._seen)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            seen = _outcome(lambda: str(call(self._url, "/health", timeout_s=2.0)[0]))
            if self._seen[-1:] != [seen]:
                self._seen.append(seen)


def _outcome(work: Callable[[], str]) -> str:
    try:
        return work()
    except (OSError, HTTPException) as error:
        return type(error).__name__


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def table(results: Sequence[Result]) -> str:
    """The results, one line a case."""
    lines = [f"{'case':34} {'codes':26} {'seconds':>7}  {'replies':30} {'health':34} wrong"]
    for r in results:
        codes = ", ".join(str(code) for code in r.codes.values())
        replies, health = ", ".join(r.replies) or "-", ", ".join(r.health)
        lines.append(f"{r.name:34} {codes:26} {r.seconds:7.2f}  {replies:30} {health:34} {'; '.join(r.wrong) or '-'}")
    return "\n".join(lines)


def main(positional: list[str]) -> int:
    """Runs the cases."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    chosen = [case for case in CASES if FLAGS.only in case.name]
    if not chosen:
        raise UsageError(f"--only={FLAGS.only}: no case; they are {'; '.join(case.name for case in CASES)}")
    origin, results = note_origin() if FLAGS.receipt else None, []
    for case in chosen:
        with Pair([f"--model={FLAGS.model}", *FLAGS.serve]) as pair:
            pair.wait_ready(FLAGS.start_seconds)
            results.append(run_case(case, pair))
        print(table(results).splitlines()[0 if len(results) == 1 else -1], flush=True)
        if len(results) == 1:
            print(table(results).splitlines()[-1], flush=True)
    if FLAGS.json is not None:
        Path(FLAGS.json).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if origin is not None:
        receipt = make_receipt(origin, "faults", f"{platform.machine()} CPU, two processes", figures(results))
        print(f"receipt: {write_receipt(receipt)}")
    return 1 if any(result.wrong for result in results) else 0


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Those of a receipt: how many cases held, and of each what was seen."""
    held = sum(not result.wrong for result in results)
    return {"cases": len(results), "held": held, "seen": {result.name: asdict(result) for result in results}}


if __name__ == "__main__":
    run(main, FLAGS)
