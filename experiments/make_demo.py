"""Host side: writes the embedded checkpoint, a small model in EXL3 that serves without a download.

Question: what is the smallest pack that has every part of a published one, and whose text and drafts are worth serving?

    python -m experiments.make_demo --out checkpoints/demo

The weights are random but for a planted path (demo/tensors.py); the tokenizer is trained on the standard library of the
Python that runs this. Same Python version, same seed, same bytes. Read next: demo/sizes.py.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from absl import flags
from tokenizers import Tokenizer

from checkpoints.commands import UsageError, run
from experiments.demo import files, sizes, successors, tensors, vocabulary
from experiments.demo.card import model_card
from experiments.demo.template import CHAT_TEMPLATE
from experiments.receipts import Origin, Receipt, make_receipt, note_origin, write_receipt

FLAGS = flags.FlagValues()
flags.DEFINE_string("out", "checkpoints/demo", "Folder to write.", flag_values=FLAGS)
flags.DEFINE_integer("seed", 1, "Seed of all weights.", 0, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Serve what was written and write a receipt of it.", flag_values=FLAGS)


@dataclass(frozen=True)
class Result:
    """What was written. file_bytes: by file name. mean_bits: of the decoder layers' weights."""

    file_bytes: dict[str, int]
    mean_bits: float


def write_demo(folder: Path, shape: sizes.Sizes, texts: list[str], seed: int) -> Result:
    """Writes the whole folder; files of the same names are replaced.

    Args:
      texts: what the tokenizer and the planted path are learnt from. seed: of all weights.
    Raises: ValueError where the vocabulary has no room for the added tokens, or the texts hold too little.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.train_tokenizer(texts, shape.bpe_tokens)
    usable = tokenizer.get_vocab_size()
    if usable > shape.vocabulary:
        raise ValueError(f"write_demo: {usable} tokens do not fit into a vocabulary of {shape.vocabulary}")
    path = plant_path(tokenizer, texts, shape, seed)
    quiet = sorted(set(range(shape.bpe_tokens, shape.vocabulary)).difference(path.flat))
    drawn = tensors.draw_tensors(shape, path, quiet, seed)
    files.write_shards(folder, drawn, shape.layers // 2)
    table, metadata = tensors.ngram_table(shape, seed)
    files.write_tensors(folder / files.SIDE_FILE, table, metadata)
    bits = files.mean_bits(drawn, f"{tensors.PREFIX}layers.")
    write_texts(folder, shape, tokenizer, bits)
    return Result({path.name: path.stat().st_size for path in sorted(folder.iterdir())}, bits)


def plant_path(tokenizer: Tokenizer, texts: list[str], shape: sizes.Sizes, seed: int) -> np.ndarray:
    """Successors [V, 3] after the pairs of the texts; a few tokens lead to the end of the thinking or of the turn."""
    ids = vocabulary.plain_text_ids(tokenizer, shape.bpe_tokens)
    pairs = successors.frequent_pairs((code.ids for code in tokenizer.encode_batch(texts)), ids)
    added, rng = vocabulary.added_ids(tokenizer), np.random.default_rng([seed, 0])
    breaks = {added["</think>"]: len(ids) // 24, added["<|im_end|>"]: len(ids) // 100}
    paragraph = tokenizer.encode("\n\n", add_special_tokens=False).ids[0]
    return successors.successors(pairs, ids, shape.vocabulary, breaks, paragraph, rng)


def write_texts(folder: Path, shape: sizes.Sizes, tokenizer: Tokenizer, bits: float) -> None:
    """Writes what is not a tensor: configuration, tokenizer, template and card."""
    added = vocabulary.added_ids(tokenizer)
    files.write_json(folder / "config.json", sizes.model_config(shape, added, bits))
    files.write_json(folder / "generation_config.json", sizes.generation_config(added))
    files.write_json(folder / "tokenizer_config.json", vocabulary.tokenizer_config(tokenizer, shape.context))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")
    (folder / "README.md").write_text(model_card(bits), "utf-8")


def demo_receipt(origin: Origin, folder: Path, result: Result, texts: list[str]) -> Receipt:
    """Size, width, and how many first drafts of greedy replies are accepted. Raises ReceiptError."""
    import fnx_jax
    from experiments.demo.drafts import PROMPT_TOKENS, REPLY_TOKENS, first_drafts

    model = fnx_jax.load(folder, lanes=1, context=PROMPT_TOKENS + REPLY_TOKENS)
    drafts = first_drafts(model, Tokenizer.from_file(str(folder / "tokenizer.json")), texts)
    figures = {
        "bytes": sum(result.file_bytes.values()),
        "layer_bits_per_weight": round(result.mean_bits, 4),
        "first_drafts_accepted": round(drafts.accepted / drafts.drafted, 4),
        "first_drafts": asdict(drafts),
    }
    device, hashes = model.fingerprint.device, {"checkpoint": model.checkpoint_digest}
    return make_receipt(origin, "demo", device, figures, fingerprint=asdict(model.fingerprint), hashes=hashes)


def main(positional: list[str]) -> None:
    """Writes the demo."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    origin = note_origin() if FLAGS.receipt else None
    folder, texts = Path(FLAGS.out), vocabulary.library_sources()
    result = write_demo(folder, sizes.Sizes(), texts, FLAGS.seed)
    for name, size in result.file_bytes.items():
        print(f"{size:>10,} {name}")
    print(f"{sum(result.file_bytes.values()):>10,} bytes, {result.mean_bits:.2f} bits a weight in the decoder layers")
    if origin is not None:
        print(f"receipt: {write_receipt(demo_receipt(origin, folder, result, texts))}")


if __name__ == "__main__":
    run(main, FLAGS)
