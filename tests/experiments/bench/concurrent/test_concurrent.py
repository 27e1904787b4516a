"""The command against a stub, and servers that are started for it and ended."""

import itertools
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from checkpoints.commands import EXIT_USAGE, execute
from experiments import receipts
from experiments.bench.concurrent import __main__ as command
from experiments.bench.concurrent import servers
from experiments.bench.concurrent.measure import run_blocks
from experiments.http_client import Client, HttpError
from tests.experiments.bench.concurrent.stub import plan, stub_server

READY = "print('Ready: m at http://127.0.0.1:9/v1, context 8', flush=True); import time; time.sleep(60)"
FEW = ("--levels=1", "--workloads=code", "--samplings=greedy", "--requests=2", "--max_tokens=8")


def bench(*flags):
    return execute(command.main, command.FLAGS, ["concurrent", *FEW, *flags])


def test_a_running_server_is_measured_and_its_receipt_written(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(receipts, "source_state", lambda folder: ("1" * 40, False))
    monkeypatch.setattr(command, "write_receipt", lambda receipt: receipts.write_receipt(receipt, tmp_path))
    with stub_server() as (stub, client):
        assert bench(f"--url={client.base}", "--alone", "--serial", "--gate=0.000001", "--receipt") == 0
    out = capsys.readouterr().out
    assert "gate 1e-06: 2 of 2 levels and arms hold" in out and "16/20" in out
    (path,) = tmp_path.iterdir()
    receipt = receipts.read_receipt(path)
    assert receipt.what == "concurrent" and receipt.fingerprint == {"digest": "f"} and receipt.device == "none"
    assert set(receipt.hashes) == {"code-greedy"}
    assert {"draft-level-serial-code-greedy", "off_request-level-1-code-greedy"} <= set(receipt.figures["cells"])
    assert receipt.figures["compilations"] == [0.0] * 4
    assert {body.get("draft", True) for body in stub.requests} == {True, False}
    assert all(body["cache_prompt"] is False and body["ignore_eos"] for body in stub.requests)


def test_every_shape_is_asked_for_before_it_is_measured():
    done = []
    with stub_server() as (stub, client):

        @contextmanager
        def open_arm(arm):
            yield client

        chosen = plan(arms=("draft", "off_request"))
        done = run_blocks(chosen, open_arm, lambda what: None, lambda done: None)
    assert [(block.half, block.arm) for block in done] == [
        (0, "draft"),
        (0, "off_request"),
        (1, "off_request"),
        (1, "draft"),
    ]
    each = len(stub.requests) // 4
    warm = [body["max_tokens"] for body in stub.requests[:each]]
    assert warm == [4] * 6 + [8] * 8
    assert all(len(m.waves) == 2 // cell.streams for cell, m in done[0].cells.items())


def test_arms_take_turns_at_each_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(receipts, "source_state", lambda folder: ("1" * 40, False))
    monkeypatch.setattr(command, "write_receipt", lambda receipt: receipts.write_receipt(receipt, tmp_path))
    with stub_server() as (stub, client):
        assert bench(f"--url={client.base}", "--beside", "--serial", "--gate=0.000001", "--receipt") == 0
    (path,) = tmp_path.iterdir()
    figures = receipts.read_receipt(path).figures
    assert figures["order"] == ["draft", "off_request", "off_request", "draft"]
    assert figures["compilations"] == [0.0] * 4 and "draft-level-serial-code-greedy" in figures["cells"]
    asked = [body.get("draft", True) for body in stub.requests if body["max_tokens"] == 8]
    last = [drafted for drafted, _ in itertools.groupby(asked[-8:])]
    assert last == [True, False, True]


@pytest.mark.parametrize("drafted", [True, False])
def test_a_server_that_refuses_beside_others_is_named(drafted, capsys):
    with stub_server() as (stub, client):
        stub.fail = lambda body: body.get("draft", True) is drafted
        assert bench(f"--url={client.base}", "--beside") == command.FAILED
    assert f"arm {'draft' if drafted else 'off_request'}: /v1/completions: 500" in capsys.readouterr().err


def test_tokens_that_differ_end_the_run_at_once(capsys):
    with stub_server() as (stub, client):
        stub.lie = lambda body: body["seed"] == 2 and body.get("draft") is False
        assert bench(f"--url={client.base}", "--gate=0.1") == command.UNEQUAL
        blocks = 2
        assert len(stub.requests) == blocks * 3
    said = capsys.readouterr()
    assert "nothing is compared: code, greedy, request 1: arm draft (block 1), level 1 gave" in said.err
    assert said.out == ""


def test_a_gate_that_is_not_met_is_an_exit_code(capsys):
    with stub_server() as (_, client):
        assert bench(f"--url={client.base}", "--gate=1e9") == command.UNMET
    assert "below the gate: level 1 over off_request" in capsys.readouterr().out


def test_a_drafted_arm_without_drafts_is_unchecked(capsys):
    with stub_server() as (stub, client):
        stub.drafts = False
        assert bench(f"--url={client.base}", "--gate=0.000001") == command.UNMET
    assert "UNCHECKED: arm draft: no draft was tested" in capsys.readouterr().out


def test_a_server_that_refuses_a_request_is_named(capsys):
    with stub_server() as (stub, client):
        stub.fail = lambda body: body.get("draft") is False
        assert bench(f"--url={client.base}") == command.FAILED
    assert "arm off_request: /v1/completions: 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--arms=draft,slow",), "--arms: 'slow'"),
        (("--levels=0",), "--levels: 0 streams"),
        (("--levels=1,x",), "--levels=1,x"),
        (("--levels=9",), "--levels: 9 streams, more than the 8 lanes"),
        (("--arms=draft",), "--gate: it needs arm draft and another"),
        (("--max_tokens=2",), "--max_tokens"),
        (("--context=100",), "prompt 0 of workload code has 128 tokens"),
        (("--model=/nonexistent",), "--model=/nonexistent: "),
        (("--url=http://127.0.0.1:9",), "--url: http://127.0.0.1:9"),
        (("--url=http://127.0.0.1:9", "--arms=draft,off_server"), "--arms: off_server"),
        (("more",), "unexpected more"),
    ],
)
def test_bad_arguments_are_refused_before_a_server_starts(capsys, monkeypatch, flags, says):
    monkeypatch.setattr(servers, "ServerProcess", lambda *_: pytest.fail("a server was started"))
    assert bench(*flags) == EXIT_USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("print('there is no such tensor'); raise SystemExit(3)", "left with code 3 .*\nthere is no such tensor"),
        ("raise SystemExit(4)", r"left with code 4 .*\n\(nothing was printed\)"),
        ("import time; print('still reading', flush=True); time.sleep(60)", "not ready after 1.5 s.*\nstill reading"),
    ],
)
def test_a_server_that_does_not_start_is_shown_by_the_end_of_its_log(code, says):
    open_arm = servers.fresh_servers([], 1.5, (sys.executable, "-c", code))
    with pytest.raises(servers.ServerFailed, match=f"arm draft: .*{says}"):
        with open_arm("draft"):
            pytest.fail("it never served")


@pytest.mark.parametrize("error", [HttpError("gone"), ValueError("else"), KeyboardInterrupt()])
def test_a_server_is_ended_whatever_happens(monkeypatch, error):
    started = []

    class Noted(servers.ServerProcess):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self.process)

    monkeypatch.setattr(servers, "ServerProcess", Noted)
    open_arm = servers.fresh_servers([], 20, (sys.executable, "-c", READY))
    wanted = servers.ServerFailed if isinstance(error, HttpError) else type(error)
    with pytest.raises(wanted) as raised:
        with open_arm("off_server") as client:
            assert client.base == "http://127.0.0.1:9" and started[0].poll() is None
            raise error
    assert started[0].poll() is not None and started[0].args[3:] == ["--port=0", "--nodrafts"]
    assert wanted is not servers.ServerFailed or "gone; the server's log ends:\nReady: m" in str(raised.value)


def test_a_stop_signal_ends_the_bench_and_its_server(tmp_path):
    note = tmp_path / "pid"
    server = f"import os; open({str(note)!r}, 'w').write(str(os.getpid())); {READY}"
    script = (
        "import sys, time\n"
        "from experiments.bench.concurrent import servers\n"
        "from experiments.server_process import ended_by_signals\n"
        f"open_arm = servers.fresh_servers([], 20, (sys.executable, '-c', {server!r}))\n"
        "with ended_by_signals(), open_arm('draft'):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None and bench.stdout.readline() == "up\n"
        child = int(note.read_text())
        assert _lives(child)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(20) == 128 + signal.SIGTERM
    assert not _lives(child)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_counters_add_labels_up(monkeypatch):
    with stub_server() as (_, client):
        assert servers.counters(client)["fnx:rounds_total"] == 3
        text = b'# TYPE a counter\na{x="1"} 1.0\na{x="2"} 2.5\nb 4.0\n'
        monkeypatch.setattr(type(client), "read", lambda self, path: text)
        assert servers.counters(client) == {"a": 3.5, "b": 4.0}


def test_a_server_without_metrics_has_no_counters():
    assert servers.counters(Client("http://127.0.0.1:9")) == {}


def test_an_interrupt_is_an_exit_code_of_its_own(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_blocks", interrupted)
    assert bench() == command.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
