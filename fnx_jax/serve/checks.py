"""Host side: small checks of one JSON value. Each takes the value and returns it, or raises Wrong with a reason.

Read next: fields.py, which gives every request field its check.
"""

import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], Any]
LONGEST_STOP = 1024
MOST_BIASES = 1024
FLOAT_MOST = 1e300


class Wrong(ValueError):
    """Why a value is refused; `where` is appended to the field's name."""

    def __init__(self, why: str, where: str = ""):
        super().__init__(why)
        self.where = where


def any_value(value: Any) -> Any:
    """Takes everything; the field's own reader checks it later."""
    return value


def boolean(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise Wrong("must be true or false")
    return value


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Wrong("must be a string")
    return value


def object_(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise Wrong("must be an object")
    return value


def number(low: float, high: float, *, open_low: bool = False) -> Check:
    """A JSON number in [low, high], or (low, high] where open_low."""
    ends = f"{'above' if open_low else 'at least'} {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong("must be a number")
        if not low <= value <= high or (open_low and value == low) or value > FLOAT_MOST:
            raise Wrong(f"must be {ends}")
        return float(value)

    return check


def integer(low: int, high: int) -> Check:
    """A whole JSON number in [low, high]."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong("must be an integer")
        if isinstance(value, float) and not value.is_integer():
            raise Wrong("must be an integer")
        if not low <= value <= high:
            raise Wrong(f"must be at least {low} and at most {high}")
        return int(value)

    return check


def one_of(*options: str) -> Check:
    """One of the given strings."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise Wrong("must be one of " + ", ".join(repr(option) for option in options))
        return value

    return check


def list_of(item: Check, most: int, least: int = 0) -> Check:
    """A list of `least` to `most` values that pass `item`."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Wrong("must be a list")
        if not least <= len(value) <= most:
            raise Wrong(f"must hold {least} to {most} entries")
        return [_at(index, item, entry) for index, entry in enumerate(value)]

    return check


def _at(index: int, item: Check, value: Any) -> Any:
    try:
        return item(value)
    except Wrong as wrong:
        raise Wrong(str(wrong), f"[{index}]{wrong.where}") from None


def token_id(value: Any) -> int:
    """A non-negative whole number; whether the vocabulary has it is asked where the vocabulary is known."""
    return integer(0, 2**31 - 1)(value)


def stop_strings(value: Any) -> tuple[str, ...]:
    """A string or a list of up to 16, none empty."""
    stops = [value] if isinstance(value, str) else list_of(text, most=16)(value)
    for stop in stops:
        if not 0 < len(stop) <= LONGEST_STOP:
            raise Wrong(f"must hold strings of 1 to {LONGEST_STOP} characters")
    return tuple(stops)


def logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """An object from token id, written as a string, to a bias in [-100, 100]."""
    if len(object_(value)) > MOST_BIASES:
        raise Wrong(f"must hold at most {MOST_BIASES} entries")
    bias = number(-100, 100)
    return tuple(sorted({_id_of(key): _under(key, bias, entry) for key, entry in value.items()}.items()))


def _id_of(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise Wrong("keys must be token ids", f".{key[:20]}")
    return int(key)


def _under(key: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except Wrong as wrong:
        raise Wrong(str(wrong), f".{key}{wrong.where}") from None


def refused(why: str = "is not supported", unless: Callable[[Any], bool] = lambda value: False) -> Check:
    """Refuses every value but those that ask for nothing."""

    def check(value: Any) -> Any:
        if unless(value):
            return None
        raise Wrong(why)

    return check
