"""Host side: the text files of a checkpoint folder -> tokenizer, template, generation defaults, end tokens.

Read next: tokenizer.py, template.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoints.errors import CheckpointError
from fnx_jax.serve.template import ChatTemplate
from fnx_jax.serve.tokenizer import Tokenizer


class AssetError(CheckpointError):
    """A text file of a checkpoint is missing or wrong; the message names it."""


@dataclass(frozen=True)
class TextAssets:
    """What turns conversations into token ids and back.

    template: None where the checkpoint has none; chat is then refused.
    generation: `generation_config.json`. eos_token_ids: every id that ends a reply.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_text_assets(folder: str | Path) -> TextAssets:
    """Reads tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json and config.json.

    Only tokenizer.json must be there; the template may be inside tokenizer_config.json. No code is imported.
    Raises: AssetError.
    """
    folder = Path(folder)
    settings = _json(folder, "tokenizer_config.json")
    generation = _json(folder, "generation_config.json")
    text, source = _text(folder, "tokenizer.json"), _template_source(folder, settings)
    try:
        tokenizer = Tokenizer.from_text(text)
        template = None if source is None else ChatTemplate(source, _special_tokens(settings))
    except ValueError as error:
        raise AssetError(f"{folder}: {error}") from None
    ends = _end_ids(generation) or _end_ids(_json(folder, "config.json")) or _named_end(tokenizer, settings)
    return TextAssets(tokenizer, template, generation, ends)


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise AssetError(f"{folder / name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise AssetError(f"{folder / name}: {error}") from None


def _json(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).exists():
        return {}
    text = _text(folder, name)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise AssetError(f"{folder / name}: {error}") from None
    if not isinstance(value, dict):
        raise AssetError(f"{folder / name}: not a JSON object")
    return value


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return _text(folder, "chat_template.jinja")
    given = settings.get("chat_template")
    if isinstance(given, list):
        named = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like, as templates see them."""
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    tokens = {name: _content(settings.get(name)) for name in names}
    return {name: content for name, content in tokens.items() if content is not None}


def _content(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _end_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    given = config.get("eos_token_id")
    if given is None and isinstance(config.get("text_config"), dict):
        given = config["text_config"].get("eos_token_id")
    ids = given if isinstance(given, list) else [given]
    return tuple(token for token in ids if isinstance(token, int))


def _named_end(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> tuple[int, ...]:
    name = _content(settings.get("eos_token"))
    token = None if name is None else tokenizer.id_of(name)
    return () if token is None else (token,)
