"""Host side: choices in the shape of /v1/completions: plain text, echo, lists of log-probabilities.

Read next: replies.py, logprobs.py.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.serve.choice import Choice, Piece
from fnx_jax.serve.deltas import Content
from fnx_jax.serve.logprobs import CompletionLogprobs, prompt_entries
from fnx_jax.serve.replies import Pending, ReplyOptions, ending
from fnx_jax.serve.tokenizer import Tokenizer


class CompletionFormat:
    """Writes completion choices; see ReplyFormat.

    Args: echoes: choice index to the prompt's text. prompt_logprobs: show them as a field of their own.
    """

    reply_kind = "text_completion"
    chunk_kind = "text_completion"
    reasoning = False

    def __init__(
        self, tokenizer: Tokenizer, options: ReplyOptions, echoes: Mapping[int, str], prompt_logprobs: bool = False
    ):
        self._tokenizer = tokenizer
        self._options = options
        self._echoes = echoes
        self._prompt_logprobs = prompt_logprobs
        self._pending: defaultdict[int, Pending] = defaultdict(Pending)
        self._lists: dict[int, CompletionLogprobs] = {}
        self._told: set[int] = set()

    def opening(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """Nothing: an echoed prompt waits for its log-probabilities."""
        return []

    def chunks(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        """The echoed prompt before a choice's first text, then its text, then its ending."""
        out: list[dict[str, Any]] = []
        pending = self._pending[choice.index]
        pending.add(piece)
        if choice.index not in self._lists:
            self._lists[choice.index] = self._reply_lists(choice)
            if self._options.echo:
                out.append(self._chunk(choice, self._echoes[choice.index], self._echo_lists(choice)))
        lists = self._lists[choice.index]
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, Content))
        if text:
            out.append(self._with_tokens(choice, text, lists, *pending.take()))
        if piece.ended:
            out.append(self._with_tokens(choice, "", lists, *pending.take()) | ending(choice))
        if out and self._options.return_token_ids and choice.index not in self._told:
            self._told.add(choice.index)
            out[0] |= {"prompt_token_ids": choice.request.prompt}
        return out

    def full(self, choice: Choice) -> dict[str, Any]:
        """The whole text with its ending."""
        text = "".join(delta.text for delta in choice.deltas if isinstance(delta, Content))
        lists = self._reply_lists(choice).lists(choice.tokens, choice.logprobs) if self._options.logprobs else None
        if self._options.echo:
            text = self._echoes[choice.index] + text
            if lists is not None:
                lists = {name: value + lists[name] for name, value in (self._echo_lists(choice) or {}).items()}
        fields = {"index": choice.index, "text": text, "logprobs": lists} | ending(choice)
        if self._prompt_logprobs:
            fields["prompt_logprobs"] = prompt_entries(self._tokenizer, choice.prompt_logprobs or ())
        if self._options.return_token_ids:
            fields |= {"token_ids": list(choice.tokens), "prompt_token_ids": choice.request.prompt}
        return fields

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Prompt ids where asked for and where there is one prompt."""
        one = len({choice.request.prompt for choice in choices}) == 1
        return {"prompt_token_ids": choices[0].request.prompt} if self._options.return_token_ids and one else {}

    def _chunk(self, choice: Choice, text: str, lists: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": choice.index, "text": text, "logprobs": lists, "finish_reason": None}

    def _with_tokens(
        self,
        choice: Choice,
        text: str,
        lists: CompletionLogprobs,
        tokens: Sequence[int],
        entries: Sequence[TokenLogprobs],
    ) -> dict[str, Any]:
        shown = lists.lists(tokens, entries) if self._options.logprobs else None
        chunk = self._chunk(choice, text, shown)
        return chunk | ({"token_ids": list(tokens)} if self._options.return_token_ids else {})

    def _reply_lists(self, choice: Choice) -> CompletionLogprobs:
        start = len(self._echoes[choice.index]) if self._options.echo else 0
        return CompletionLogprobs(self._tokenizer, self._options.top, start, self._options.skip_special)

    def _echo_lists(self, choice: Choice) -> dict[str, Any] | None:
        if not self._options.logprobs:
            return None
        prompt = choice.request.prompt
        entries = choice.prompt_logprobs or (None,) * len(prompt)
        return CompletionLogprobs(self._tokenizer, self._options.top, skip_special=False).lists(prompt, entries)
