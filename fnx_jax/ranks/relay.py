"""Host side: a local port whose bytes go to an address elsewhere, and which outlives the other end.

JAX aborts a process at once when its coordination service closes the connection, which is when rank 0 dies. Behind a
relay that connection just falls silent, and the ranks' own link decides how the process ends.
"""

import contextlib
import socket
import threading

_PIECE = 1 << 16


class Relay:
    """Listens on a free port of the loopback and passes every connection on, until `close`.

    address: HOST:PORT to connect to.
    """

    def __init__(self, host: str, port: int):
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        _start(self._accept)

    def close(self) -> None:
        """Takes no more connections; those there are live on."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                self._pass_on(self._listener.accept()[0])

    def _pass_on(self, inner: socket.socket) -> None:
        try:
            outer = socket.create_connection(self._target)
        except OSError:
            return inner.close()
        _start(_pass_there, inner, outer)
        _start(_pass_back, outer, inner)


def _pass_there(near: socket.socket, far: socket.socket) -> None:
    """Until the near side ends, which ends the far one."""
    with near, far:
        _pump(near, far)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)


def _pass_back(far: socket.socket, near: socket.socket) -> None:
    """Until the far side ends, of which the near one hears nothing."""
    _pump(far, near)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            sink.sendall(data)


def _start(work, *arguments) -> None:
    threading.Thread(target=work, args=arguments, name="fnx-relay", daemon=True).start()
