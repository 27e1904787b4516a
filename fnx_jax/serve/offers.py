"""Host side: the tools a request offers and which of them may be called. Read next: tools.py, chat.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fnx_jax.serve.fields import LATER
from fnx_jax.serve.validate import Fields, refuse

MOST_TOOLS = 1024


@dataclass(frozen=True)
class ToolOffer:
    """What the template is shown and the parser accepts.

    tools: as rendered, None without any. schemas: function name to parameters schema. callable: whether calls count;
    False leaves the tools in the prompt and forbids the opening tag.
    """

    tools: list[dict[str, Any]] | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)
    callable: bool = False


def read_offer(fields: Fields) -> ToolOffer:
    """Reads `tools` and `tool_choice`.

    Raises: ApiError 400.
    """
    tools = fields.get("tools")
    if tools is not None and (not isinstance(tools, list) or len(tools) > MOST_TOOLS):
        raise refuse("tools", f"must be a list of at most {MOST_TOOLS} tools")
    schemas: dict[str, Any] = {}
    for index, tool in enumerate(tools or ()):
        name, schema = _function(tool, f"tools[{index}]")
        if name in schemas:
            raise refuse(f"tools[{index}].function.name", f"{name!r} is offered twice")
        schemas[name] = schema
    choice = _choice(fields.get("tool_choice"), schemas)
    return ToolOffer(tools, schemas, choice == "auto") if schemas else ToolOffer()


def _function(tool: Any, param: str) -> tuple[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise refuse(f"{param}.type", "must be function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise refuse(f"{param}.function", "must be an object")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not 0 < len(name) <= 128 or any(mark in name for mark in "<>\n"):
        raise refuse(f"{param}.function.name", "must be a name of 1 to 128 characters")
    if schema is not None and not isinstance(schema, dict):
        raise refuse(f"{param}.function.parameters", "must be a JSON schema object")
    return name, schema


def _choice(choice: Any, schemas: Mapping[str, Any]) -> str:
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if isinstance(name, str) and name not in schemas:
        raise refuse("tool_choice", f"names {name!r}, which is not among the tools")
    if choice == "required" or isinstance(name, str):
        raise refuse("tool_choice", f"{'required' if choice == 'required' else 'with a named function'} {LATER}")
    raise refuse("tool_choice", "must be none, auto, required or a named function")
