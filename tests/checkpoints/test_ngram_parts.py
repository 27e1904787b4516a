"""An n-gram table that is incomplete, misshapen or contradicted by its file or config is refused by name."""

import ml_dtypes
import numpy as np
import pytest

from checkpoints import CheckpointError
from checkpoints.ngram import open_ngram_table
from tests.checkpoints.ngram_tables import (
    BITS,
    DIM,
    MULTIPLIERS,
    OFFSETS,
    PREFIX,
    SIZES,
    codec_rows,
    exl3_tensors,
    plain_rows,
    plain_tensors,
    stored,
)


def refused(store, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_ngram_table(store, PREFIX)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ({"unrelated": np.zeros(1, np.int8)}, ("ngram_embedding", "no shard")),
        (plain_tensors(changes={"ngram_embedding.shard_0.weight": None}), ("shard_0.weight", "missing")),
        (plain_tensors((4,) * 12, changes={"ngram_embedding.shard_3.weight": None}), ("shard_3.weight", "missing")),
        (plain_tensors(changes={"ngram_embedding.weight": plain_rows()}), ("ngram_embedding.weight", "shards")),
        (plain_tensors(changes={"ngram_embedding.trellis": codec_rows()}), ("both trellis and weight",)),
        (plain_tensors(changes={"ngram_embedding.shard_01.weight": plain_rows()}), ("two ways",)),
        (plain_tensors(changes={"layer_multipliers": None}), (PREFIX + "layer_multipliers", "no such tensor")),
        (plain_tensors(changes={"ngram_heads_offsets": OFFSETS.astype(np.int32)}), ("ngram_heads_offsets", "I64")),
        (plain_tensors(changes={"ngram_heads_offsets": OFFSETS + 1}), ("ngram_heads_vocab_sizes", "running sum")),
        (plain_tensors(changes={"ngram_heads_vocab_sizes": SIZES[:3]}), ("ngram_heads_vocab_sizes", "do not fit")),
        (plain_tensors(changes={"layer_multipliers": MULTIPLIERS[:1]}), ("1 multipliers",)),
        (plain_tensors(changes={"ngram_embedding.shard_1.weight": plain_rows()[:27]}), ("need 48 rows", "has 47")),
        (plain_tensors(changes={"ngram_embedding.shard_1.weight": plain_rows(np.float16)}), ("shard_1", "differs")),
        (plain_tensors(changes={"ngram_embedding.shard_1.weight": plain_rows()[:, :8].copy()}), ("shard_1", "differs")),
        (plain_tensors(dtype=ml_dtypes.float8_e4m3fn), ("F8_E4M3", "BF16 or F16 or F32")),
        (exl3_tensors(False, {"head_bias": None}), ("head_bias", "no such tensor")),
        (exl3_tensors(False, {"head_bias": np.zeros((3, DIM), np.float16)}), ("head_bias", "[4, row_dim]")),
        (exl3_tensors(False, {"head_bias": np.full((4, DIM), np.nan, np.float16)}), ("head_bias", "finite")),
        (exl3_tensors(False, {"trellis": codec_rows().astype(np.int32)}), ("ngram_embedding.trellis", "I16")),
        (exl3_tensors(False, {"head_bias": np.zeros((4, 10), np.float16)}), ("ngram_embedding.trellis", "1 to 8 bits")),
        (exl3_tensors(False, {"trellis": codec_rows()[:, :1].copy()}), ("ngram_embedding.trellis", "1 to 8 bits")),
        (exl3_tensors(True, {"shard_0.trellis": None}), ("shard_0.trellis", "missing")),
    ],
)  # fmt: skip
def test_table_that_is_incomplete_or_misshapen_is_refused_by_name(tmp_path, tensors, parts):
    refused(stored(tmp_path, tensors), *parts)


CODEC = {"format": "exl3_ngram_trellis", "version": "1", "K": "3", "codebook": "mul1", "row_dim": "16", "rows": "48"}


@pytest.mark.parametrize("metadata", [CODEC, CODEC | {"codebook_scale": "1.0"}, {"format": "pt", "version": "1.4.4"}])
def test_metadata_that_fits_is_accepted(tmp_path, metadata):
    assert open_ngram_table(stored(tmp_path, exl3_tensors(False), metadata), PREFIX).bits == BITS


@pytest.mark.parametrize(
    "change",
    [
        {"format": "exl3_ngram_other"},
        {"version": "2"},
        {"K": "4"},
        {"codebook": "mcg"},
        {"row_dim": "160"},
        {"rows": "47"},
        {"shard_rows": "5"},
    ],
)
def test_metadata_that_contradicts_the_tensors_is_refused(tmp_path, change):
    (key,) = change
    refused(stored(tmp_path, exl3_tensors(False), CODEC | change), "ngram_embedding.trellis", f"has {key} ")


CONFIG = {
    "model_type": "qwen4_exp_text", "vocab_size": 64, "seed": 1234, "ngram_size": 3, "heads_per_ngram": 2,
    "ngram_vocab_size_base": 7, "ple_layer_ids": [2],
}  # fmt: skip


@pytest.mark.parametrize("tensors", [plain_tensors(), exl3_tensors(True)])
def test_hash_tensors_that_follow_from_the_config_are_accepted(tmp_path, tensors):
    open_ngram_table(stored(tmp_path, tensors, config=CONFIG), PREFIX)
    without_seed = {key: value for key, value in CONFIG.items() if key != "seed"}
    open_ngram_table(stored(tmp_path, tensors, config=without_seed), PREFIX)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 65}, "hash multipliers"),
        ({"seed": 1235}, "hash multipliers"),
        ({"seed": "1234"}, "seed must be an integer"),
        ({"ngram_vocab_size_base": 8}, "hash sizes"),
        ({"heads_per_ngram": 3}, "hash sizes"),
        ({"ple_layer_ids": [3]}, "ple_layer_ids"),
        ({"ple_layer_ids": [1, 2]}, "hash multipliers"),
        ({"ple_layer_ids": ["2"]}, "ple_layer_ids"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_hash_tensors_that_contradict_the_config_are_refused(tmp_path, change, message):
    refused(stored(tmp_path, plain_tensors(), config=CONFIG | change), message)
