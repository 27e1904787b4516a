"""One server for the tests that do not change its state; each test starts with an empty script."""

from collections.abc import Iterator

import pytest

from tests.fnx_jax.serve.support import TestServer, running


@pytest.fixture(scope="session")
def shared_server() -> Iterator[TestServer]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared_server: TestServer) -> TestServer:
    shared_server.script.say("")
    shared_server.script.requests.clear()
    return shared_server
