"""Host side: the text of one call parameter -> a JSON value, as the offered schema types it. Read next: tools.py."""

import ast
import json
from collections.abc import Mapping
from typing import Any

NULLS = ("null", "None")
TRUTHS = {"true": True, "false": False}
DEEPEST = 64
ORDER = ("null", "boolean", "integer", "number", "object", "array")
CONTAINERS = {"object": dict, "array": list}


class _NoValue(ValueError):
    pass


def typed_value(text: str, schema: Any, root: Any) -> Any:
    """Reads a parameter's text.

    Types are tried from the narrowest; a string, or text that fits no allowed type, is kept verbatim. Without a
    schema the text is JSON where that gives something other than a string.

    Args: text: between the tags. schema: the property's schema or None. root: the function's parameters schema.
    """
    allowed = types_of(schema, root)
    if "string" in allowed and _is_listed(text, schema):
        return text
    for kind in ORDER:
        if kind in allowed or not allowed:
            try:
                return _READERS[kind](text.strip())
            except _NoValue:
                continue
    return text


def types_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema allows; empty where it doesn't say."""
    if not isinstance(schema, Mapping) or depth > 8:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(kind for kind in named if isinstance(kind, str))
    if isinstance(reference := schema.get("$ref"), str):
        return types_of(_lookup(reference, root), root, depth + 1)
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word) or ()]
    if parts:
        return frozenset().union(*(types_of(part, root, depth + 1) for part in parts))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema[k] for k in ("const",) if k in schema]
    return frozenset(_type_name(value) for value in values)


def _lookup(reference: str, root: Any) -> Any:
    for step in reference.removeprefix("#").strip("/").split("/"):
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _type_name(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _is_listed(text: str, schema: Any) -> bool:
    return isinstance(schema, Mapping) and isinstance(schema.get("enum"), list) and text in schema["enum"]


def _null(text: str) -> None:
    if text not in NULLS:
        raise _NoValue
    return None


def _boolean(text: str) -> bool:
    if text.lower() not in TRUTHS:
        raise _NoValue
    return TRUTHS[text.lower()]


def _integer(text: str) -> int:
    value = _number(text)
    if isinstance(value, float) and not value.is_integer():
        raise _NoValue
    return int(value)


def _number(text: str) -> int | float:
    value = _json(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NoValue
    return value


def _container(kind: str) -> Any:
    def read(text: str) -> Any:
        for reader in (_json, _literal):
            try:
                value = reader(text)
            except _NoValue:
                continue
            if isinstance(value, CONTAINERS[kind]):
                return value
        raise _NoValue

    return read


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _NoValue from None


def _literal(text: str) -> Any:
    # Deep nesting can bring the compiler down, so it is counted first.
    if max(text.count(bracket) for bracket in "([{") > DEEPEST * 64 or _depth(text) > DEEPEST:
        raise _NoValue
    try:
        return json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise _NoValue from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _refuse(constant: str) -> None:
    raise _NoValue(constant)


_READERS = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _container("object"),
    "array": _container("array"),
}
