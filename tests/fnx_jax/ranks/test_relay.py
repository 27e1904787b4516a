"""A relay passes bytes both ways, and keeps its own side open when the other end dies."""

import socket
import threading

import pytest

from fnx_jax.ranks.relay import Relay


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as target:
        relay = Relay(*target.getsockname())
        host, _, port = relay.address.rpartition(":")
        with socket.create_connection((host, int(port))) as near:
            far, _ = target.accept()
            with far:
                yield near, far
        relay.close()
    for thread in threading.enumerate():
        if thread.name == "fnx-relay":  # it closes the relay's own sockets
            thread.join(10)


def test_bytes_pass_both_ways(ends):
    near, far = ends
    near.sendall(b"there")
    assert far.recv(100) == b"there"
    far.sendall(b"back")
    assert near.recv(100) == b"back"


def test_the_near_side_hears_nothing_of_the_far_sides_death(ends):
    near, far = ends
    far.close()
    near.settimeout(0.3)
    with pytest.raises(TimeoutError):
        near.recv(1)


def test_the_far_side_hears_of_the_near_sides_end(ends):
    near, far = ends
    near.close()
    far.settimeout(10)
    assert far.recv(1) == b""
