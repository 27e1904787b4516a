"""Host side: every request field this server knows, in one table. It drives validation and prints its own document.

A field that isn't here is accepted, logged once and named in the `X-Ignored-Fields` header.
`python -m fnx_jax.serve.fields` prints the table. Read next: validate.py.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fnx_jax.serve import checks
from fnx_jax.serve.checks import Check

Route = Literal["chat", "completions", "tokenize", "detokenize"]
CHAT: tuple[Route, ...] = ("chat",)
COMPLETIONS: tuple[Route, ...] = ("completions",)
REPLIES: tuple[Route, ...] = ("chat", "completions")
RENDERED: tuple[Route, ...] = ("chat", "tokenize")
SEED_LOW, SEED_HIGH = -(2**63), 2**64 - 1
LATER = "is not supported yet"


@dataclass(frozen=True)
class Field:
    """One request field.

    routes: where it counts; elsewhere it is an unknown field. check: value -> value, or Wrong.
    says: what it does, for the document. refused: any value but a neutral one is an error.
    """

    name: str
    routes: tuple[Route, ...]
    check: Check
    says: str
    refused: bool = False


def _refused(name: str, routes: tuple[Route, ...], why: str, *neutral: Any) -> Field:
    asks_nothing = lambda value: any(type(value) is type(one) and value == one for one in neutral)  # noqa: E731
    return Field(name, routes, checks.refused(why, asks_nothing), why, refused=True)


def _is_plain_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


PROMPTS = (
    Field("model", ("chat", "completions", "tokenize", "detokenize"), checks.text, "a served name; may be left out"),
    Field("messages", RENDERED, checks.any_value, "the conversation"),
    Field("prompt", ("completions", "tokenize"), checks.any_value, "text, token ids, or a list of either"),
    Field("tokens", ("detokenize",), checks.list_of(checks.token_id, 2**24), "token ids to turn into text"),
    Field("tools", RENDERED, checks.any_value, "functions the model may call"),
    Field("tool_choice", CHAT, checks.any_value, "none or auto; required and named are refused for now"),
    Field("parallel_tool_calls", CHAT, checks.boolean, "false ends the reply after the first complete call"),
    Field("chat_template_kwargs", RENDERED, checks.object_, "variables for the template; wins over the aliases"),
    Field("enable_thinking", RENDERED, checks.boolean, "alias of the template variable"),
    Field(
        "reasoning_effort",
        RENDERED,
        checks.one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "none turns thinking off; the others map to low, medium, xhigh",
    ),
    Field("add_generation_prompt", RENDERED, checks.boolean, "open an assistant turn at the end (default true)"),
    Field("continue_final_message", RENDERED, checks.boolean, "leave the last assistant message open"),
    Field("add_special_tokens", ("tokenize",), checks.boolean, "let the tokenizer add its own (default true)"),
    Field("return_token_strs", ("tokenize",), checks.boolean, "the vocabulary's spelling of each token"),
)

SAMPLING = (
    Field("max_tokens", REPLIES, checks.integer(0, 2**31 - 1), "reply limit; the room of the context where absent"),
    Field("max_completion_tokens", CHAT, checks.integer(0, 2**31 - 1), "wins over max_tokens"),
    Field("min_tokens", REPLIES, checks.integer(0, 2**31 - 1), "no end and no stop before this many"),
    Field(
        "thinking_token_budget",
        CHAT,
        checks.integer(0, 2**31 - 1),
        "reasoning that is not closed after so many tokens is closed then",
    ),
    Field("n", REPLIES, checks.integer(1, 2**31 - 1), "replies to the same prompt"),
    Field("temperature", REPLIES, checks.number(0, 2), "0 takes the likeliest token"),
    Field("top_p", REPLIES, checks.number(0, 1, open_low=True), "nucleus mass"),
    Field("top_k", REPLIES, checks.integer(-1, 2**31 - 1), "candidates kept; -1 and 0 keep all"),
    Field("min_p", REPLIES, checks.number(0, 1), "floor relative to the likeliest"),
    Field("presence_penalty", REPLIES, checks.number(-2, 2), "subtracted once a token has occurred"),
    Field("frequency_penalty", REPLIES, checks.number(-2, 2), "subtracted for every occurrence"),
    Field("repetition_penalty", REPLIES, checks.number(1e-6, 1e6), "scales tokens seen before"),
    Field("logit_bias", REPLIES, checks.logit_bias, "token id to an addend in [-100, 100], 1024 at most"),
    Field("seed", REPLIES, checks.integer(SEED_LOW, SEED_HIGH), "64 bits; a fresh one is drawn and returned"),
    Field("stop", REPLIES, checks.stop_strings, "up to 16 strings that end the reply; not inside reasoning"),
    Field("stop_token_ids", REPLIES, checks.list_of(checks.token_id, 256), "token ids that end the reply"),
    Field("include_stop_str_in_output", REPLIES, checks.boolean, "keep what ended the reply in the text"),
    Field("ignore_eos", REPLIES, checks.boolean, "the model's end tokens do not end the reply"),
    Field("draft", REPLIES, checks.boolean, "whether drafts may be tried; never changes tokens"),
    Field(
        "cache_prompt",
        REPLIES,
        checks.boolean,
        "whether kept states of prompts are used and made; never changes tokens",
    ),
)

REPLY = (
    Field("stream", REPLIES, checks.boolean, "server-sent events"),
    Field("stream_options", REPLIES, checks.object_, "include_usage, continuous_usage_stats"),
    Field("logprobs", CHAT, checks.boolean, "log-probabilities of the reply's tokens"),
    Field("top_logprobs", CHAT, checks.integer(0, 20), "likeliest tokens beside each"),
    Field("logprobs", COMPLETIONS, checks.integer(0, 20), "log-probabilities and this many of the likeliest"),
    Field("prompt_logprobs", COMPLETIONS, checks.integer(0, 20), "the same for the prompt's tokens"),
    Field("echo", COMPLETIONS, checks.boolean, "the prompt in front of the reply; allows max_tokens 0"),
    Field("skip_special_tokens", REPLIES, checks.boolean, "leave special tokens out of the text (default true)"),
    Field("include_reasoning", CHAT, checks.boolean, "false drops the reasoning from the reply, not from usage"),
    Field("return_token_ids", REPLIES, checks.boolean, "token ids of prompt and replies"),
    Field("request_id", REPLIES, checks.text, "becomes part of the reply's id"),
    Field("user", REPLIES, checks.text, "logged only"),
)

REFUSED = (
    _refused("audio", CHAT, "is not supported"),
    _refused("modalities", CHAT, "is not supported beyond text", ["text"]),
    _refused("functions", CHAT, "is not supported; use tools"),
    _refused("function_call", CHAT, "is not supported; use tool_choice"),
    _refused("best_of", REPLIES, "is not supported above 1", 1),
    _refused("use_beam_search", REPLIES, "is not supported", False),
    _refused("suffix", COMPLETIONS, "is not supported", ""),
    _refused("prompt_embeds", REPLIES, "is not supported"),
    _refused("chat_template", RENDERED, "is not supported; the checkpoint's template is used"),
    _refused("truncate_prompt_tokens", ("chat", "completions", "tokenize"), "is not supported"),
    _refused("bad_words", REPLIES, "is not supported", []),
    _refused("allowed_token_ids", REPLIES, "is not supported"),
    _refused("prompt_logprobs", CHAT, "is not supported here; use /v1/completions"),
    Field("response_format", REPLIES, checks.refused(LATER, _is_plain_format), LATER, refused=True),
    _refused("structured_outputs", REPLIES, LATER),
    _refused("guided_json", REPLIES, LATER),
    _refused("guided_regex", REPLIES, LATER),
    _refused("guided_choice", REPLIES, LATER),
    _refused("guided_grammar", REPLIES, LATER),
)

FIELDS: tuple[Field, ...] = PROMPTS + SAMPLING + REPLY + REFUSED


def fields_of(route: Route) -> dict[str, Field]:
    """Name to field for one route."""
    return {field.name: field for field in FIELDS if route in field.routes}


def document() -> str:
    """The table as Markdown."""
    lines = ["| field | where | | |", "| --- | --- | --- | --- |"]
    for field in FIELDS:
        kind = "refused" if field.refused else "honoured"
        lines.append(f"| `{field.name}` | {', '.join(field.routes)} | {kind} | {field.says} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document())
