"""The embedded checkpoint and the script that writes it."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from experiments import make_demo
from experiments.demo import drafts, exl3_writer, files, sizes, successors, tensors, vocabulary
from tests.reference.numpy_model import NumpyModel, State
from tests.reference.numpy_weights import load_tensors

DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
TINY = sizes.Sizes(
    vocabulary=384, bpe_tokens=300, layers=4, heads=2, kv_heads=1, experts=2, active_experts=1, ngram_base=20
)
TEXTS = [Path(successors.__file__).read_text("utf-8"), Path(tensors.__file__).read_text("utf-8")]


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    return load_tensors(DEMO)


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((DEMO / "config.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_seed_writes_the_same_bytes_and_another_seed_other_weights(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_demo.write_demo(tmp_path / name, TINY, TEXTS, seed)
    a, b, c = (folder_bytes(tmp_path / name) for name in "abc")
    assert a == b
    assert {name for name in a if a[name] != c[name]} == {*files.SHARDS, files.SIDE_FILE}


def test_written_model_runs_in_the_oracle(tmp_path):
    make_demo.write_demo(tmp_path, TINY, TEXTS, 3)
    model = NumpyModel(json.loads((tmp_path / "config.json").read_text("utf-8")), load_tensors(tmp_path))
    assert np.isfinite(model.forward([1, 2, 3, 299])).all()


def test_vocabulary_without_room_for_added_tokens_is_refused(tmp_path):
    with pytest.raises(ValueError, match="326 tokens do not fit into a vocabulary of 320"):
        make_demo.write_demo(tmp_path, replace(TINY, vocabulary=320), TEXTS, 3)


def test_first_successors_form_one_cycle_and_the_others_use_each_token_once():
    ids = list(range(5, 60))
    rng = np.random.default_rng(0)
    pairs = list({(int(a), int(b)) for a, b in rng.choice(ids, (400, 2))})
    first = successors.one_cycle(pairs, ids)
    seen, at = [], ids[0]
    while at not in seen:
        seen.append(at)
        at = first[at]
    assert sorted(seen) == ids
    second = successors.matching(pairs, ids, [first])
    assert sorted(second) == sorted(second.values()) == ids


def test_greedy_encoding_stays_close_to_its_target():
    layer = exl3_writer.identity_linear(np.random.default_rng(0), 256, 4, 2.0)
    error = exl3_writer.matrix(layer) - 2.0 * np.eye(256)
    assert np.linalg.norm(error) < 0.4 * np.linalg.norm(2.0 * np.eye(256))


def test_random_layer_has_the_asked_spread_and_whole_blocks():
    layer = exl3_writer.random_linear(np.random.default_rng(0), 128, 160, 2.5, 3.0)
    assert layer["trellis"].shape == (8, 16, 40)
    assert np.isclose(exl3_writer.matrix(layer).std() * 128**0.5, 3.0, rtol=0.1)


def test_committed_texts_are_what_the_script_writes(tmp_path, tokenizer, stored):
    bits = files.mean_bits(stored, f"{tensors.PREFIX}layers.")
    make_demo.write_texts(tmp_path, sizes.Sizes(), tokenizer, bits)
    for name, content in folder_bytes(tmp_path).items():
        if name != "README.md":  # names the Python version that wrote it
            assert (DEMO / name).read_bytes() == content, name


def test_committed_weights_are_what_the_script_draws(stored):
    writer = tensors.Writer(sizes.Sizes(), 1)
    name = f"{tensors.PREFIX}layers.7.mlp.experts.11.up_proj"
    writer.linear(name, 128, 128, 4)
    writer.norm(f"{tensors.PREFIX}layers.3.self_attn.q_norm", 64, tensors.BF16)
    for drawn, values in writer.tensors.items():
        assert np.array_equal(stored[drawn], values), drawn
    table, _ = tensors.ngram_table(sizes.Sizes(), 1)
    assert all(np.array_equal(stored[drawn], values) for drawn, values in table.items())


def test_committed_folder_is_small():
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 8_000_000


def test_index_names_the_shards_tensors_and_leaves_out_the_side_file(stored):
    listed = json.loads((DEMO / files.INDEX).read_text("utf-8"))["weight_map"]
    assert set(listed.values()) == set(files.SHARDS)
    for shard in files.SHARDS:
        with safe_open(DEMO / shard, "np") as opened:
            assert set(opened.keys()) == {name for name in listed if listed[name] == shard}
    rest = set(stored) - set(listed)
    assert {name.rpartition(".")[2] for name in rest} == {
        "trellis",
        "head_bias",
        "head_offsets",
        "head_vocab_sizes",
        "layer_multipliers",
    }
    assert all(".ngram_embedding." in name for name in rest)


def test_every_exl3_layer_is_whole_and_marked_mul1(stored):
    layers = [name[: -len(".trellis")] for name in stored if name.endswith(".trellis") and stored[name].ndim == 3]
    assert len(layers) == 8 * (16 * 3 + 3) + 6 * 3 + 2 * 5 + (16 * 3 + 3 + 5 + 2) + 1
    for name in layers:
        trellis = stored[f"{name}.trellis"]
        assert trellis.dtype == np.int16
        assert trellis.shape[0] % 8 == trellis.shape[1] % 8 == 0
        assert stored[f"{name}.suh"].shape == (16 * trellis.shape[0],)
        assert stored[f"{name}.svh"].shape == (16 * trellis.shape[1],)
        assert stored[f"{name}.suh"].dtype == stored[f"{name}.svh"].dtype == np.float16
        assert stored[f"{name}.mul1"].shape == () and int(stored[f"{name}.mul1"]) & 0xFFFFFFFF == 0x83DCD12D


def test_widths_differ_between_families_and_inside_a_layer(stored):
    def widths(*parts: str) -> set[float]:
        names = [name for name in stored if name.endswith(".trellis") and all(part in name for part in parts)]
        return {stored[name].shape[-1] / 16 for name in names}

    for layer in [f"{tensors.PREFIX}layers.{i}." for i in range(8)] + ["mtp.layers.0."]:
        assert widths(layer, ".experts.") == {2.5, 3, 3.5, 4}
        assert widths(layer, ".shared_expert.") == {5}
    assert widths(".linear_attn.") == widths("self_attn.q_proj") == widths("self_attn.o_proj") == {5}
    assert widths("lm_head") == {6} and widths("mtp.fc_") == {4} and widths("index_qk_proj") == {3}


def test_index_projection_is_padded_to_a_whole_block(stored, config):
    text = config["text_config"]
    wanted = (text["indexer_n_heads"] + 1) * text["indexer_head_dim"]
    shape = stored["mtp.layers.0.self_attn.indexer.index_qk_proj.trellis"].shape
    assert wanted == 160 and shape[1] * 16 == 256


def test_plain_tensors_have_the_dtypes_of_published_packs(stored):
    bf16 = ("embed_tokens", "q_norm", "k_layernorm", "A_log", "dt_bias", "linear_attn.conv1d", "linear_attn.norm")
    f16 = ("hyper_connection", "mlp.gate.", "shared_expert_gate", "in_proj_a", "ple.key_proj", "ple.conv1d")
    for parts, dtype in ((bf16, tensors.BF16), (f16, np.float16)):
        for part in parts:
            found = {array.dtype for name, array in stored.items() if part in name}
            assert found == {np.dtype(dtype)}, part


def test_padding_rows_and_unused_added_tokens_have_quiet_heads(stored, tokenizer):
    usable, size = tokenizer.get_vocab_size(), np.abs(stored["lm_head.svh"].astype(np.float64))
    assert usable < 4096 and size[usable:].max() < 1.0 < size[: sizes.Sizes().bpe_tokens].min()


def test_added_tokens_stand_last_and_end_a_reply(tokenizer, config):
    added = vocabulary.added_ids(tokenizer)
    usable = tokenizer.get_vocab_size()
    assert sorted(added.values()) == list(range(usable - len(added), usable))
    assert config["text_config"]["eos_token_id"] == config["text_config"]["bos_token_id"] == added["<|endoftext|>"]
    defaults = json.loads((DEMO / "generation_config.json").read_text("utf-8"))
    assert defaults["eos_token_id"] == [added["<|im_end|>"], added["<|endoftext|>"]]
    assert tokenizer.encode("a<|im_end|>b</think>", add_special_tokens=False).ids[1::2] == [
        added["<|im_end|>"],
        added["</think>"],
    ]


@settings(deadline=None, max_examples=100)
@given(st.text())
def test_tokenizer_returns_any_text_in_composed_form(text):
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_tokenizer_splits_digits_and_keeps_emoji_and_line_ends(tokenizer):
    for text in ("naïve café 😀👩‍👩‍👧 1234\r\n\n\tdef f(x):\n", "日本語とпривет", "a\x00b"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.decode([i]) for i in tokenizer.encode("2048").ids] == list("2048")
    assert len(tokenizer.encode("import os\nfor line in lines:").ids) < 10


# ------------------------------------------------------------------------------------------------ template

LOW = "Keep your thinking short, and answer as soon as you can."
XHIGH = "Think as long as the question needs, and check your answer before you give it."
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def render(messages: list[dict], **options) -> str:
    def fail(message: str):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = fail
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string((DEMO / "chat_template.jinja").read_text("utf-8")).render(messages=messages, **options)


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_template_opens_thinking_and_states_the_effort():
    hello = turn("user", "Hi <b> & é")
    messages = [user("Hi <b> & é")]
    assert render(messages) == turn("system", XHIGH) + hello
    opened = "<|im_start|>assistant\n<think>\n"
    assert render(messages, add_generation_prompt=True) == turn("system", XHIGH) + hello + opened
    assert render(messages, reasoning_effort="low", add_generation_prompt=True) == turn("system", LOW) + hello + opened
    assert render(messages, reasoning_effort="medium", add_generation_prompt=True) == hello + opened
    assert render(messages, enable_thinking=False, add_generation_prompt=True) == hello + opened + "\n</think>\n\n"
    with pytest.raises(TemplateError, match="not high"):
        render(messages, reasoning_effort="high")


def test_template_puts_effort_system_text_and_tools_into_the_first_turn():
    messages = [{"role": "system", "content": " Be kind.\n"}, user("Hi")]
    assert render(messages, enable_thinking=False) == turn("system", "Be kind.") + turn("user", "Hi")
    text = render(messages, tools=[TOOL, TOOL])
    line = json.dumps(TOOL)
    assert text.startswith(f"<|im_start|>system\n{XHIGH}\n\nBe kind.\n\nYou may call")
    assert f"<tools>\n{line}\n{line}\n</tools>\n\n" in text
    assert text.endswith("</function>\n</tool_call><|im_end|>\n" + turn("user", "Hi"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no message"),
        ([user("a"), {"role": "system", "content": "b"}], "must be the first"),
        ([user("a"), {"role": "critic", "content": "b"}], "unknown role critic"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "not image_url"),
        ([user("a"), {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}], "must be an object"),
    ],
)
def test_template_refuses_what_it_cannot_render(messages, message):
    with pytest.raises(TemplateError, match=message):
        render(messages)


def test_template_keeps_or_drops_earlier_thinking():
    messages = [
        user("1"),
        {"role": "assistant", "content": "one", "reasoning_content": "hm\n"},
        user([{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]),  # type: ignore[arg-type]
        {"role": "assistant", "content": "<think>\nlook\n</think>\n\ntwo"},
    ]
    kept = turn("user", "1") + turn("assistant", "<think>\nhm\n</think>\n\none") + turn("user", "23")
    newest = turn("assistant", "<think>\nlook\n</think>\n\ntwo")
    assert render(messages, reasoning_effort="medium") == kept + newest
    dropped = turn("user", "1") + turn("assistant", "one") + turn("user", "23")
    assert render(messages, reasoning_effort="medium", preserve_thinking=False) == dropped + newest


def test_template_writes_calls_in_xml_and_groups_their_results():
    calls = [
        {"type": "function", "function": {"name": "look", "arguments": {"at": "é <x>", "deep": True, "n": [1, "ü"]}}},
        {"type": "function", "function": {"name": "stop", "arguments": {}}},
    ]
    messages = [
        user("go"),
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": "r2"},
        user("and?"),
    ]
    text = render(messages, reasoning_effort="medium")
    first = (
        "<tool_call>\n<function=look>\n<parameter=at>\né <x>\n</parameter>\n<parameter=deep>\ntrue\n</parameter>\n"
        '<parameter=n>\n[1, "ü"]\n</parameter>\n</function>\n</tool_call>'
    )
    second = "\n<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    answer = turn("assistant", f"<think>\n\n</think>\n\nWell.\n\n{first}{second}")
    results = "<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
    assert text == turn("user", "go") + answer + turn("user", results) + turn("user", "and?")


# ------------------------------------------------------------------------------------------------ the planted path


def greedy_with_drafts(model: NumpyModel, ids: list[int], count: int) -> tuple[list[int], int]:
    """Greedy tokens, and how many of them the draft head guessed one token before."""
    state, taps, cache = State(), {}, {}
    logits = model.forward(ids, state, taps)[-1]
    model.mtp(taps["streams"][:-1], ids[1:], cache)
    found, guesses = [], []
    for _ in range(count):
        found.append(int(logits.argmax()))
        drafted, _ = model.mtp(taps["streams"][-1:], found[-1:], cache)
        guesses.append(int(drafted[0].argmax()))
        logits = model.forward(found[-1:], state, taps)[-1]
    return found, sum(a == b for a, b in zip(guesses, found[1:], strict=False))


def test_greedy_text_does_not_loop_and_accepts_40_to_90_percent_of_first_drafts(config, stored, tokenizer):
    model, accepted, count = NumpyModel(config, stored, np.float32), 0, 32
    questions = ("Why is the sky blue?", "import os\nimport sys\n", "Write a haiku about the sea.")
    for question in questions:
        ids = tokenizer.encode(render([user(question)], add_generation_prompt=True), add_special_tokens=False).ids
        found, agreed = greedy_with_drafts(model, ids, count)
        accepted += agreed
        assert len(set(found)) > 0.7 * count
        assert max(found) < tokenizer.get_vocab_size()
    assert 0.4 <= accepted / (len(questions) * (count - 1)) <= 0.9


def test_first_drafts_are_held_against_the_reply_behind_its_first_token():
    """A draft head that counts on from the token it is given, and a reply that does so but once."""
    functions = SimpleNamespace(
        streams=lambda params, ids, ngrams: jnp.zeros((len(ids), 1)),
        mtp_forward=lambda params, streams, following: jax.nn.one_hot(following + 1, 200),
    )
    model: Any = SimpleNamespace(
        params=None,
        functions=functions,
        ngram_embeddings=lambda ids: np.zeros((len(ids), 0, 0), np.float32),
        generate=lambda prompt, count, draft: [150, 151, 152, 7, 8],
    )
    tokens: Any = SimpleNamespace(
        encode_batch=lambda texts, add_special_tokens: [SimpleNamespace(ids=list(range(int(text)))) for text in texts]
    )
    assert drafts.first_drafts(model, tokens, ["40", "3", "30"]) == drafts.FirstDrafts(2, drafted=8, accepted=6)
    with pytest.raises(ValueError, match="no text of 30 tokens"):
        drafts.first_drafts(model, tokens, ["3"])
