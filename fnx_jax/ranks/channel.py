"""Host side: records over a TCP connection: four bytes of length, then so many bytes. Read next: link.py."""

import socket
import struct
import threading
from collections.abc import Callable

from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.messages import SMALL, AnyMessage, decode, encode

LOOK_S = 0.2
_LENGTH = struct.Struct(">I")


class Channel:
    """Messages over one connection. One thread receives; any may send.

    most_bytes: a longer record is refused, unread. silence_s: how long the other may take nothing in, or say nothing;
    either may be changed at any time.
    """

    def __init__(self, connection: socket.socket, silence_s: float):
        self.most_bytes, self.silence_s = SMALL, silence_s
        self._connection, self._sending = connection, threading.Lock()
        connection.settimeout(LOOK_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: AnyMessage) -> None:
        """Sends a message. Raises RankLost."""
        data = encode(message)
        with self._sending:
            self.write(_LENGTH.pack(len(data)) + data)

    def receive(self) -> AnyMessage:
        """Waits for a message. Raises RankLost where none comes, or one that is too long or none."""
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if length > self.most_bytes:
            raise RankLost(f"a record of {length} bytes, at most {self.most_bytes} were expected")
        return decode(self.read(length))

    def write(self, data: bytes) -> None:
        """Sends bytes as they are. Raises RankLost."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._patiently(lambda rest=rest: self._connection.send(rest)) :]

    def read(self, length: int) -> bytearray:
        """Waits for so many bytes. Raises RankLost."""
        data = bytearray(length)
        rest = memoryview(data)
        while rest:
            got = self._patiently(lambda rest=rest: self._connection.recv_into(rest))
            if not got:
                raise RankLost("the connection was closed")
            rest = rest[got:]
        return data

    def _patiently(self, work: Callable[[], int]) -> int:
        """Tries for `silence_s`, as it stands at the moment. Only time spent looking counts, not a pause of our own."""
        waited_s = 0.0
        while True:
            try:
                return work()
            except TimeoutError:
                waited_s += LOOK_S
                if waited_s >= self.silence_s:
                    raise RankLost("no sign of life in time") from None
            except OSError as error:
                raise RankLost(error.strerror or str(error)) from error

    def close(self) -> None:
        """Ends the connection, also under a thread that receives."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster
        self._connection.close()
