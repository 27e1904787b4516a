"""Log lines, progress, keys: small things an operator reads."""

import io
import json
import logging

from fnx_jax.serve import access_log
from fnx_jax.serve.access_log import RequestRecord
from fnx_jax.serve.auth import KeyRing
from fnx_jax.serve.logs import JsonFormatter, configure_logging
from fnx_jax.serve.progress import Progress
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import running


def test_one_access_line_a_request_without_its_text(caplog):
    with caplog.at_level(logging.INFO, "fnx_jax.serve.access"), running(ServerSettings(port=0)) as server:
        server.script.say("</think>secret reply")
        server.http.headers["X-Request-Id"] = "r1"
        server.chat("secret words", user="some one")
        server.http.get("/health")
        server.chat(temperature=9)
    first, second = (record.getMessage() for record in caplog.records if record.name == "fnx_jax.serve.access")
    assert first.startswith("id=r1 method=POST path=/v1/chat/completions status=200")
    for part in ("prompt_tokens=", "completion_tokens=", "finish_reason=stop", "ttft_s=", 'user="some one"'):
        assert part in first
    assert "secret" not in first
    assert "status=400" in second


def test_log_values_cannot_make_lines(caplog):
    with caplog.at_level(logging.INFO, "fnx_jax.serve.access"):
        access_log.write(RequestRecord("a", "GET", "/x\nid=b status=200"))
    assert "\n" not in caplog.records[0].getMessage()


def test_log_lines_as_json():
    record = logging.LogRecord("n", logging.INFO, "p", 1, "hi %s", ("you",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "hi you"
    record.fields = {"status": 200}
    assert json.loads(JsonFormatter().format(record))["status"] == 200


def test_logging_goes_to_one_stream():
    names = ("fnx_jax", "uvicorn")
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names}
    stream = io.StringIO()
    try:
        configure_logging(as_json=True, stream=stream)
        logging.getLogger("fnx_jax.serve").info("hello")
    finally:
        for name, (handlers, propagate) in before.items():
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert json.loads(stream.getvalue())["message"] == "hello"


def test_progress_prints_a_line_every_few_seconds():
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream=stream, every_s=5, clock=lambda: now[0])
    for second in range(0, 13):
        now[0] = second
        progress("reading", second << 30, 12 << 30)
    progress("warming up")
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "reading" and lines[-1] == "warming up"
    assert lines[1:-1] == [
        "reading: 5.00 of 12.00 GiB, 1.00 GiB/s",
        "reading: 10.00 of 12.00 GiB, 1.00 GiB/s",
        "reading: 12.00 of 12.00 GiB, 1.00 GiB/s",
    ]


def test_quiet_progress_prints_nothing():
    stream = io.StringIO()
    progress = Progress(quiet=True, stream=stream)
    progress("reading", 1, 2)
    progress.close()
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    progress = Progress(stream=stream)
    progress("reading", 1 << 20, 4 << 20)
    progress("reading", 4 << 20, 4 << 20)
    progress.close()
    assert "reading" in stream.getvalue() and "100%" in stream.getvalue()


def test_keys_open_what_they_should():
    ring = KeyRing(("one", "zwei é"))
    assert ring.admits("/v1/models", "Bearer one") and ring.admits("/v1/models", "bearer  zwei é")
    for header in (None, "", "one", "Basic one", "Bearer", "Bearer two", "Bearer \udcff"):
        assert not ring.admits("/v1/models", header)
    assert ring.admits("/health", None) and ring.admits("/metrics", None)
    assert not KeyRing(("one",), protect_metrics=True).admits("/metrics", None)
    assert KeyRing(()).admits("/v1/models", None)
