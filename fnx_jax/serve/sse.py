"""Host side: server-sent events over ASGI, and watching for a client that leaves. Read next: answer.py."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class ClientGone(Exception):
    """The client closed its connection, or stopped reading."""


def event(value: Any) -> bytes:
    """One event: JSON on one line, non-ASCII kept."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless(work: Awaitable[Any], *ends: Awaitable[Any]) -> Any:
    """Waits for `work`; raises ClientGone where one of `ends` comes first. Whatever is left is cancelled."""
    working = asyncio.ensure_future(work)
    tasks = [working, *(asyncio.ensure_future(end) for end in ends)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SseResponse:
    """An ASGI response that sends events until they end, the client leaves, or it stops reading.

    Args: stalled: set when too much waits for the client. close: called however it ends, with whether it was whole.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        stalled: asyncio.Event,
        close: Callable[[bool], None],
        headers: Mapping[str, str],
    ):
        self._events = events
        self._stalled = stalled
        self._close = close
        self._headers = [(name.encode(), value.encode()) for name, value in (HEADERS | dict(headers)).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            await unless(self._send(send), disconnected(receive), self._stalled.wait())
            whole = True
        except ClientGone:
            pass  # nobody is left to tell; `close` logs it
        finally:
            self._close(whole)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        async with aclosing(self._events) as events:
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
