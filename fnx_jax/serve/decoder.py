"""Host side: reply tokens -> text, one token at a time, never half a character. Read next: transcript.py."""

import codecs

from fnx_jax.serve.tokenizer import Tokenizer


class TextDecoder:
    """Turns a reply's tokens into text as far as whole characters go.

    Args:
      tokenizer: the vocabulary. skip_special: leave special tokens out, except those in `keep`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, keep: frozenset[int] = frozenset()):
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - keep if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Text that this token completes; the rest of a split character waits."""
        if token in self._hidden:
            return ""
        return self._utf8.decode(self._tokenizer.bytes_of(token))

    def flush(self) -> str:
        """What an unfinished character becomes at the end: one U+FFFD, or nothing."""
        return self._utf8.decode(b"", final=True)
