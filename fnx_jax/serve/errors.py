"""Host side: what a caller is told when a request can't be served. One exception, one body shape.

Read next: validate.py (most of the reasons), gate.py (where they become replies).
"""

from dataclasses import dataclass, field
from typing import Any

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
LONGEST_NAME = 200
"""Characters of a caller's own text that a message repeats."""


@dataclass(eq=False)
class ApiError(Exception):
    """An answer other than success.

    status: HTTP status. message: one sentence for the caller. param: the request field at fault.
    code: a short name, or the status where there is none. headers: extra reply headers.
    """

    status: int
    message: str
    param: str | None = None
    code: str | int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """The JSON body of the reply, or of the last event of a broken stream."""
        kind = TYPES.get(self.status, "InternalServerError")
        code = self.status if self.code is None else self.code
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong, `param` names where."""
    return ApiError(400, message, param, code)


def context_exceeded(context: int, prompt: int, reply: int, param: str) -> ApiError:
    """400: prompt and reply don't fit; both numbers are told so that a client can shorten its history."""
    place = "messages" if param == "messages" else "prompt"
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + reply} tokens "
        f"({prompt} in the {place}, {reply} in the completion). Please shorten the {place} or the completion."
    )
    fault = param if prompt >= context else "max_tokens"
    return ApiError(400, message, fault, "context_length_exceeded")


def unauthorized() -> ApiError:
    """401: no key, or a wrong one; which of the two isn't told."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, "A valid API key is needed as a bearer token.", None, "invalid_api_key", headers)


def model_not_found(name: str) -> ApiError:
    """404: the request asks for a model that this server doesn't have."""
    return ApiError(404, f"The model {name[:LONGEST_NAME]!r} does not exist.", "model", "model_not_found")


def queue_full() -> ApiError:
    """429: too many requests wait already."""
    message = "Too many requests are waiting; try again in a moment."
    return ApiError(429, message, None, "queue_full", {"Retry-After": "1"})


def unavailable(why: str) -> ApiError:
    """503: loading, draining, or the device is lost."""
    return ApiError(503, why, None, None, {"Retry-After": "5"})


def internal(message: str = "The server failed to answer this request.") -> ApiError:
    """500: a fault on this side; details stay in the log."""
    return ApiError(500, message)
