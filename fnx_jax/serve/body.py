"""Host side: reads a request body within its limit. Read next: validate.py."""

from starlette.requests import Request

from fnx_jax.serve.errors import ApiError


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The whole body.

    Raises: ApiError 415 where it isn't declared as JSON, 413 where it is too large; the connection is then closed,
    so that what was not read can't be taken for the next request.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, f"The body must be application/json, not {kind[:80]}.", headers={"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            raise _too_large(most_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(most_bytes: int) -> ApiError:
    message = f"The body is larger than {most_bytes} bytes."
    return ApiError(413, message, headers={"Connection": "close"})
