"""Host side: records over a TCP connection: four bytes of length, then so many bytes. Read next: link.py."""

import socket
import struct
import threading

from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.messages import SMALL, AnyMessage, decode, encode

_LENGTH = struct.Struct(">I")


class Channel:
    """Messages over one connection. One thread receives; any may send.

    most_bytes: a longer record is refused, unread. silence_s: how long a send may take, and a receive may hear nothing.
    """

    def __init__(self, connection: socket.socket, silence_s: float):
        self.most_bytes = SMALL
        self._connection, self._sending = connection, threading.Lock()
        connection.settimeout(silence_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: AnyMessage) -> None:
        """Sends a message. Raises RankLost."""
        data = encode(message)
        try:
            with self._sending:
                self._connection.sendall(_LENGTH.pack(len(data)) + data)
        except (OSError, struct.error) as error:
            raise RankLost(f"nothing can be sent: {_describe(error)}") from error

    def receive(self) -> AnyMessage:
        """Waits for a message. Raises RankLost where none comes, or one that is too long or none."""
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if length > self.most_bytes:
            raise RankLost(f"a record of {length} bytes, at most {self.most_bytes} were expected")
        return decode(self.read(length))

    def write(self, data: bytes) -> None:
        """Sends bytes as they are. Raises RankLost."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise RankLost(f"nothing can be sent: {_describe(error)}") from error

    def read(self, length: int) -> bytearray:
        """Waits for so many bytes. Raises RankLost."""
        data = bytearray(length)
        view, have = memoryview(data), 0
        while have < length:
            try:
                got = self._connection.recv_into(view[have:])
            except OSError as error:
                raise RankLost(_describe(error)) from error
            if not got:
                raise RankLost("the connection was closed")
            have += got
        return data

    def set_silence(self, silence_s: float) -> None:
        """Changes `silence_s` from the next send and receive on."""
        self._connection.settimeout(silence_s)

    def close(self) -> None:
        """Ends the connection, also under a thread that receives."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster
        self._connection.close()


def _describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no sign of life in time"
    return getattr(error, "strerror", None) or str(error)
