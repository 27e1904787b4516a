"""Token bytes are exact, and text is decoded without ever showing half a character."""

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from fnx_jax.serve.decoder import TextDecoder
from fnx_jax.serve.tokenizer import Tokenizer, TokenizerError, byte_alphabet
from tests.fnx_jax.serve.support import byte_ids, ids, tokenizer

HARD = "naïve 日本 👩‍🚀 ok\n\x00"


def decode_one_by_one(tokens: list[int], **options) -> list[str]:
    decoder = TextDecoder(tokenizer(), **options)
    return [decoder.push(token) for token in tokens] + [decoder.flush()]


def test_alphabet_names_every_byte_once():
    assert sorted(byte_alphabet().values()) == list(range(256))


@pytest.mark.parametrize("encode", [ids, byte_ids])
def test_decode_reverses_encode(encode):
    assert tokenizer().decode(encode(HARD)) == HARD


def test_decode_agrees_with_the_library():
    for text in (HARD, "a<think>b</think>", "The weather in Bern"):
        assert tokenizer().decode(ids(text)) == tokenizer().raw.decode(ids(text), skip_special_tokens=False)


def test_split_characters_are_held_back():
    pieces = decode_one_by_one(byte_ids(HARD))
    assert "".join(pieces) == HARD
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[2] == "" and pieces[3] == "ï"


def test_unfinished_character_is_flushed_once():
    pieces = decode_one_by_one(byte_ids("a👩")[:-1])
    assert "".join(pieces) == "a\ufffd"
    assert pieces[-1] == "\ufffd"


def test_special_tokens_are_left_out_on_request():
    tokens = ids("a<|im_end|><think>b")
    assert "".join(decode_one_by_one(tokens)) == "a<think>b"
    assert "".join(decode_one_by_one(tokens, skip_special=False)) == "a<|im_end|><think>b"


def test_ids_without_a_token_are_no_text():
    assert tokenizer().bytes_of(100_000) == b""


def test_other_decoders_are_refused():
    raw = RawTokenizer(models.BPE())
    raw.decoder = decoders.Metaspace()
    with pytest.raises(TokenizerError, match="ByteLevel"):
        Tokenizer(raw)


def test_broken_file_is_refused():
    with pytest.raises(TokenizerError):
        Tokenizer.from_text("{}")
