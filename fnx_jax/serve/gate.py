"""Host side: what every request passes: an id, the key, one shape for faults, one line in the log.

Plain ASGI, so that streams pass through untouched. Read next: app.py.
"""

import asyncio
import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fnx_jax.serve import access_log
from fnx_jax.serve.access_log import RequestRecord
from fnx_jax.serve.auth import KeyRing
from fnx_jax.serve.errors import ApiError, internal, unauthorized, unavailable
from fnx_jax.serve.settings import ServerSettings

log = logging.getLogger(__name__)
REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
RECORD = "fnx_record"


class Gate:
    """The outermost layer but CORS.

    Args: app: what answers. settings: keys and how to log.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings):
        self._app = app
        self._settings = settings
        self._keys = KeyRing(settings.api_keys, settings.protect_metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        record = RequestRecord(_request_id(headers), scope["method"], scope["path"])
        scope[RECORD] = record
        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = record.status or message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.id
            await send(message)

        try:
            if not self._keys.admits(scope["path"], headers.get("authorization")):
                await error_response(unauthorized())(scope, receive, tagged)
            else:
                await self._app(scope, receive, tagged)
        except asyncio.CancelledError:  # the server has ended, and a body has not come yet
            if started:
                raise
            await error_response(unavailable("The server is shutting down."))(scope, receive, tagged)
        except Exception:
            log.exception("request %s failed", record.id)
            record.status = 500
            if started:
                raise
            await error_response(internal())(scope, receive, tagged)
        finally:
            if not self._settings.quiet:
                access_log.write(record)


def error_response(error: ApiError) -> JSONResponse:
    """The reply for a fault."""
    return JSONResponse(error.body(), error.status, headers=error.headers)


def _request_id(headers: Headers) -> str:
    """The caller's id where it is fit for a header and a log line, else a fresh one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
