"""Host side: renders a checkpoint's chat template, in the sandbox and with the helpers such templates count on.

Source: the template conventions of the transformers library. Read next: chat.py.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateError(ValueError):
    """What a template refuses, in its own words."""


class ChatTemplate:
    """A compiled chat template.

    Args: source: Jinja text. variables: names every rendering sees, such as special tokens.
    Raises: TemplateError where the source doesn't compile.
    """

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self.source = source
        self._variables = dict(variables or {})
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"chat template: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders messages to prompt text.

        Args: variables: more names for this rendering. Raises: TemplateError with the template's own message.
        """
        names = self._variables | dict(variables or {})
        names |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(**names)
        # Templates are programs: type errors and the like are theirs, caused by what the request holds.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise TemplateError(str(error) or type(error).__name__) from None
        except RecursionError:
            raise TemplateError("the messages are nested too deeply") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escaping, which would change the prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
