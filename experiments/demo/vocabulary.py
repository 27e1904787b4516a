"""Host side: a byte-level BPE tokenizer with the added tokens of the family. Equal texts give equal bytes."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Letters (with at most one other sign before them), single digits, runs of other signs, line ends, spaces.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Tokens that decoding may leave out."""
MARKUP = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Tokens that are part of the text: decoding keeps them."""


def train_tokenizer(texts: Sequence[str], tokens: int) -> Tokenizer:
    """Trains byte-level BPE.

    Args:
      texts: what to count. tokens: ids before the added tokens, the 256 bytes among them.
    Returns: a tokenizer with the added tokens at the ids from `tokens` on.
    Raises: ValueError where the texts hold too few pairs for that many tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=tokens, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != tokens:
        raise ValueError(f"train_tokenizer: {tokenizer.get_vocab_size()} tokens found, {tokens} were wanted")
    for text in CONTROL:
        tokenizer.add_tokens([AddedToken(text, special=True, normalized=False)])
    for text in MARKUP:
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])
    return tokenizer


def added_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Text -> id of the added tokens."""
    return {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """tokenizer_config.json, for readers that look there for what ends a turn."""
    added = tokenizer.get_added_tokens_decoder()
    flags = ("lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(i): {"content": token.content, **{flag: getattr(token, flag) for flag in flags}}
            for i, token in sorted(added.items())
        },
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": context,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "unk_token": None,
    }
