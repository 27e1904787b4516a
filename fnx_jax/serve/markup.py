"""Host side: the tags of Flash-Next's chat format. Read next: reasoning.py, tools.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Markup:
    """Texts with a meaning in prompts and replies.

    turn_open, turn_close: ends of one message. think_open, think_close: around reasoning.
    call_open, call_close: around one tool call.
    """

    turn_open: str = "<|im_start|>"
    turn_close: str = "<|im_end|>"
    think_open: str = "<think>"
    think_close: str = "</think>"
    call_open: str = "<tool_call>"
    call_close: str = "</tool_call>"

    def structural(self) -> tuple[str, ...]:
        """Tags that the text side must see in a reply, whatever the tokenizer calls them."""
        return (self.think_open, self.think_close, self.call_open, self.call_close)


MARKUP = Markup()


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `tag`: what may still become the tag."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
