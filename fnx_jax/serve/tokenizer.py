"""Host side: text <-> token ids, with every token's exact bytes. Wraps a byte-level BPE `tokenizer.json`.

The bytes come from the vocabulary itself, so that text can be decoded token by token and still be exact.
Read next: decoder.py (bytes to text), assets.py (the files beside it).
"""

import json
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer as RawTokenizer


class TokenizerError(ValueError):
    """A tokenizer file that this server can't decode exactly."""


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte, reversed: character -> byte.

    Printable Latin-1 characters stand for themselves, the other bytes for 256, 257, ... in order.
    Source: the byte encoder of GPT-2.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


class Tokenizer:
    """A byte-level BPE tokenizer.

    Args: raw: the loaded file. Raises: TokenizerError where its decoder isn't byte-level.
    """

    def __init__(self, raw: RawTokenizer):
        if not _is_byte_level(json.loads(raw.to_str()).get("decoder")):
            raise TokenizerError("tokenizer: the decoder is not ByteLevel")
        self.raw = raw
        added = raw.get_added_tokens_decoder()
        self._added = {token: entry.content for token, entry in added.items()}
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._alphabet = byte_alphabet()

    @classmethod
    def from_text(cls, text: str) -> "Tokenizer":
        """Reads the contents of a `tokenizer.json`."""
        try:
            return cls(RawTokenizer.from_str(text))
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"tokenizer: {error}") from None

    @cached_property
    def size(self) -> int:
        """One more than the highest id that has a token."""
        return max(self.raw.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, add_special_tokens: bool = False) -> tuple[int, ...]:
        """Text to ids; text that spells a special token becomes that token."""
        return tuple(self.raw.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_with_ends(self, text: str) -> tuple[tuple[int, ...], list[int]]:
        """Text to ids, and where in the text, in characters, each of them ends."""
        encoding = self.raw.encode(text, add_special_tokens=False)
        return tuple(encoding.ids), [end for _, end in encoding.offsets]

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling, None where there is none."""
        return self.raw.token_to_id(token)

    def spelling(self, token: int) -> str:
        """The vocabulary's own spelling of an id, empty for an id without a token."""
        return self.raw.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes:
        """The bytes an id stands for; none for an id without a token."""
        if token in self._added:
            return self._added[token].encode()
        spelling = self.spelling(token)
        if all(character in self._alphabet for character in spelling):
            return bytes(self._alphabet[character] for character in spelling)
        return spelling.encode()

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Ids to text; bytes that are not UTF-8 become U+FFFD."""
        kept = (token for token in tokens if not (skip_special_tokens and token in self.special_ids))
        return b"".join(self.bytes_of(token) for token in kept).decode("utf-8", errors="replace")


def _is_byte_level(decoder: dict | None) -> bool:
    if not decoder:
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(part) for part in decoder.get("decoders", ()))
