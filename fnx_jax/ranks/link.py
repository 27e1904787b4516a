"""Host side: one live connection between two ranks: signs of life both ways, and whether the other is lost.

Two threads of its own send and receive, so that a busy device delays neither. Read next: leader.py, follower.py.
"""

import queue
import threading
from collections.abc import Callable

from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.messages import AnyMessage, Beat, End, Left


class Link:
    """A connection to rank `other`, from the moment on when it has been greeted.

    Args:
      beat: makes the sign of life that is sent every `beat_s`. on_lost: called once, on a thread of the link's, with
        what happened, unless `close` came first.
    lost: what happened, None while all is well. ended: the other has said that it ends. compilations: its own, as it
    last said. signs: of life, heard so far.
    """

    def __init__(
        self,
        channel: Channel,
        other: int,
        beat_s: float,
        on_lost: Callable[[str], None],
        beat: Callable[[], int] = lambda: 0,
    ):
        self.other, self.compilations, self.signs = other, 0, 0
        self.lost: str | None = None
        self.ended = False
        self._channel, self._beat_s, self._beat, self._on_lost = channel, beat_s, beat, on_lost
        self._inbox: queue.SimpleQueue[AnyMessage | None] = queue.SimpleQueue()
        self._closed, self._losing = threading.Event(), threading.Lock()
        for name, work in (("beat", self._send_beats), ("hear", self._hear)):
            threading.Thread(target=work, name=f"fnx-rank{other}-{name}", daemon=True).start()

    def send(self, message: AnyMessage) -> None:
        """Sends a message. Raises RankLost."""
        self.check()
        try:
            self._channel.send(message)
        except RankLost as error:
            self._lose(str(error))
            self.check()

    def receive(self, timeout_s: float | None = None) -> AnyMessage:
        """The next message that is no sign of life. Raises RankLost; TimeoutError after `timeout_s`."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"rank {self.other} says nothing") from None
        if message is None:
            self._inbox.put(None)  # for whoever asks next
            self.check()
            raise RankLost(f"rank {self.other}: the connection is closed")
        return message

    def allow(self, most_bytes: int) -> None:
        """Lets longer records in from now on."""
        self._channel.most_bytes = most_bytes

    def expect_signs(self, silence_s: float) -> None:
        """From now on the other is lost when it is not heard for so long."""
        self._channel.silence_s = silence_s

    def check(self) -> None:
        """Raises RankLost where the other is lost."""
        if self.lost is not None:
            raise RankLost(self.lost)

    def expect_end(self) -> None:
        """From now on the other may leave without being lost."""
        self._closed.set()

    def close(self) -> None:
        """Ends the connection."""
        self._closed.set()
        self._channel.close()

    def _send_beats(self) -> None:
        while not self._closed.wait(self._beat_s):
            try:
                self._channel.send(Beat(self._beat()))
            except RankLost as error:
                return self._lose(str(error))

    def _hear(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, Left):
                    raise RankLost(f"it left: {message.why}")
                if isinstance(message, Beat):
                    self.compilations = message.compilations
                    self.signs += 1
                    continue
                if isinstance(message, End):
                    self.ended = True
                    self._closed.set()  # what follows is no loss
                self._inbox.put(message)
        except RankLost as error:
            self._lose(str(error))
        self._channel.close()

    def _lose(self, why: str) -> None:
        with self._losing:
            first = self.lost is None and not self._closed.is_set()
            if first:
                self.lost = f"rank {self.other} is lost: {why}"
        self._inbox.put(None)
        if first:
            self._on_lost(str(self.lost))
