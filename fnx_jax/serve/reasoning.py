"""Host side: splits a reply's text into reasoning and content. The prompt decides where it starts.

Read next: transcript.py.
"""

from fnx_jax.engine.request import Budget
from fnx_jax.serve.markup import Markup, overlap
from fnx_jax.serve.tokenizer import Tokenizer
from fnx_jax.serve.validate import Fields, refuse


def starts_in_reasoning(prompt: str, markup: Markup) -> bool:
    """Whether the turn that a rendered prompt leaves open is inside a think block.

    Only the last turn is looked at, so a tag quoted in an earlier message doesn't count.
    """
    turn = prompt[prompt.rfind(markup.turn_open) + 1 :]
    return markup.turn_close not in turn and turn.rfind(markup.think_open) > turn.rfind(markup.think_close)


def reasoning_budget(fields: Fields, tokenizer: Tokenizer, markup: Markup) -> Budget | None:
    """The bound that a request sets on its reasoning, closed as the template closes it; None where it sets none.

    Raises: ApiError 400 where there are log-probabilities to be told, or no token closes.
    """
    tokens = fields.get("thinking_token_budget")
    if tokens is None:
        return None
    if fields.get("logprobs"):
        raise refuse("thinking_token_budget", "is not supported together with logprobs")
    close, closing = tokenizer.id_of(markup.think_close), tokenizer.encode(f"\n{markup.think_close}\n\n")
    if close is None or close not in closing:
        raise refuse("thinking_token_budget", f"needs a token for {markup.think_close}, which this vocabulary lacks")
    return Budget(tokens, close, closing)


class ReasoningSplit:
    """Text before the first closing tag is reasoning, the rest content; the tag and newlines beside it are neither.

    Args: open_: whether the prompt left a think block open; without it everything is content.
    """

    def __init__(self, open_: bool, markup: Markup):
        self.open = open_
        self._tag = markup.think_close
        self._held = ""
        self._at_tag = False

    def feed(self, text: str) -> tuple[str, str]:
        """Takes more text; returns what it adds to (reasoning, content)."""
        if not self.open:
            return "", self._after(text)
        text = self._held + text
        at = text.find(self._tag)
        if at >= 0:
            self.open, self._at_tag, self._held = False, True, ""
            return text[:at].rstrip("\n"), self._after(text[at + len(self._tag) :])
        ready = len(text[: len(text) - overlap(text, self._tag)].rstrip("\n"))
        self._held = text[ready:]
        return text[:ready], ""

    def close(self) -> str:
        """Reasoning still held when the reply ends without the tag."""
        held, self._held = self._held, ""
        return held

    def _after(self, text: str) -> str:
        if self._at_tag:
            text = text.lstrip("\n")
            self._at_tag = not text
        return text
