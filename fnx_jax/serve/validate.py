"""Host side: request body -> checked fields. Nothing here knows the model; every fault is a 400 naming its field.

Read next: fields.py (the table), options.py and sampling.py (what the fields mean together).
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fnx_jax.serve.checks import Wrong
from fnx_jax.serve.errors import ApiError, bad_request
from fnx_jax.serve.fields import Route, fields_of

log = logging.getLogger(__name__)
MOST_IGNORED = 32
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True)
class Fields:
    """A request body after the table has passed it.

    values: field to checked value; absent, null and neutral refused fields are left out. ignored: unknown names.
    """

    values: Mapping[str, Any]
    ignored: tuple[str, ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where the request doesn't give one."""
        return self.values.get(name, default)

    def headers(self) -> dict[str, str]:
        """The reply header that names what was not used."""
        return {"X-Ignored-Fields": ", ".join(self.ignored)} if self.ignored else {}


def read_json(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object strictly: no NaN, no Infinity, no trailing text.

    Raises: ApiError 400.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_request(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value


def read_fields(route: Route, body: bytes) -> Fields:
    """Checks a request body against the table.

    Returns: the checked fields. Raises: ApiError 400 with `param`.
    """
    table = fields_of(route)
    values, ignored = {}, []
    for name, value in read_json(body).items():
        if value is None:
            continue
        field = table.get(name)
        if field is None:
            ignored.append(name)
            continue
        checked = _checked(name, field.check, value)
        if not field.refused:
            values[name] = checked
    options = values.get("stream_options", {})
    ignored += [f"stream_options.{name}" for name in options if name not in STREAM_OPTIONS]
    return Fields(values, tuple(_printable(name) for name in ignored[:MOST_IGNORED]))


def _checked(name: str, check: Any, value: Any) -> Any:
    try:
        return check(value)
    except Wrong as wrong:
        raise refuse(name + wrong.where, str(wrong)) from None


def refuse(param: str, why: str) -> ApiError:
    """400 in the common form: the field, then what is wrong with it."""
    return bad_request(f"{param} {why}.", param)


def _printable(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else "(unprintable)"


class IgnoredOnce:
    """Logs each unknown field name the first time it is seen; remembers a bounded number."""

    def __init__(self, most: int = 1000):
        self._seen: set[str] = set()
        self._most = most

    def note(self, names: tuple[str, ...]) -> None:
        """Logs the names that are new."""
        for name in names:
            if name not in self._seen and len(self._seen) < self._most:
                self._seen.add(name)
                log.warning("request field %s is not known and was ignored", name)
