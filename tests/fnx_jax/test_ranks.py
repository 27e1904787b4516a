"""Several devices give the bits of one: every leaf dealt by heads, experts or vocabulary, sums in one fixed tree."""

import jax
import numpy as np
import pytest

import fnx_jax
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.families.flash_next.shards import deal, kv_columns, vocabulary_columns
from fnx_jax.mesh import DEALT, layout
from tests.fnx_jax.cases import FOLDER, read_case

DEMO = FOLDER.parent.parent / "checkpoints" / "demo"


@pytest.mark.parametrize(("name", "devices"), [("silu_two_ple", 2), ("long_eos", 4), ("four_ranks", 4)])
def test_devices_change_no_bit_of_the_logits(name, devices, exact_model):
    ids = read_case(name)["p0.input_ids"]
    assert np.array_equal(exact_model(name, devices).logits(ids), exact_model(name).logits(ids))


def test_served_streams_are_those_of_one_device(exact_model):
    one, dealt = exact_model("four_ranks"), exact_model("four_ranks", 4)
    rng, ids = np.random.default_rng(4), (10, 500)
    kinds = [
        {"temperature": 0.0, "presence_penalty": 0.7, "logit_bias": ((40, 3.0), (100, -2.0))},
        {},
        {"top_k": 20, "top_p": 0.9},
        {"top_p": 0.99, "temperature": 3.0},
    ]
    requests = [
        Request(
            f"r{i}",
            tuple(int(token) for token in rng.integers(*ids, length)),
            SamplingParams(**{"temperature": 0.9, **kind}, seed=i, max_tokens=8, logprobs=2),
        )
        for i, (length, kind) in enumerate(zip((3, 40, 70, 17), kinds, strict=True))
    ]
    replies = [Engine(model.steps).run(requests) for model in (one, dealt)]
    for name in replies[0]:
        alone, several = ([(e.tokens, e.logprobs) for e in reply[name]] for reply in replies)
        assert alone == several
    ids_BT = rng.integers(*ids, (2, 9))
    assert np.array_equal(dealt.score(ids_BT), one.score(ids_BT))


def test_no_device_holds_another_ranks_experts(demo_model):
    dealt = fnx_jax.load(DEMO, devices=2, lanes=1, context=64)
    pool = dealt.params.layers[0].moe.lines.gate[0].wq
    assert pool.shape[:2] == (2, dealt.config.experts // 2)
    assert {shard.data.shape[0] for shard in pool.addressable_shards} == {1}
    whole = demo_model.params.layers[0].moe.lines.gate[0].wq
    assert np.array_equal(np.asarray(pool).reshape(whole.shape), np.asarray(whole))


def test_what_is_dealt_and_what_is_not():
    dealt = fnx_jax.load(FOLDER / "long_eos", devices=4, dtype="float32", lanes=1, context=64)
    specs = layout(dealt.params)
    attention, delta = specs.layers[3], specs.layers[0]
    assert attention.mixer.q == attention.moe.lines.gate[0] == specs.head == DEALT
    assert DEALT not in (attention.mixer.o, attention.mixer.index, attention.moe.router, specs.embedding)
    assert DEALT not in jax.tree.leaves(delta.mixer)  # two key heads for four devices


def test_memory_is_what_lies_on_each_device():
    dealt = fnx_jax.load(FOLDER / "long_eos", devices=4, dtype="float32", lanes=1, context=64)
    lying = dict.fromkeys(dealt.steps.device.mesh.devices.flat, 0)
    for leaf in jax.tree.leaves((dealt.params, dealt.steps.state)):
        for shard in leaf.addressable_shards:
            lying[shard.device] += shard.data.nbytes
    memory = dealt.memory()
    assert set(lying.values()) == {memory["total_bytes"]}
    assert memory["total_bytes"] == memory["weights_bytes"] + memory["caches_bytes"]
    assert dealt.devices == ("cpu",) * 4


def test_four_ranks_hold_one_group_of_each_kind():
    dealt = fnx_jax.load(FOLDER / "four_ranks", devices=4, dtype="float32", lanes=1, context=64)
    shards = deal(dealt.config, 4)
    assert (shards.heads, shards.kv_heads, shards.experts) == (2, 1, 8)
    assert (shards.delta_ranks, shards.delta_key_heads, shards.delta_value_heads) == (4, 1, 2)
    assert [len(part) for part in vocabulary_columns(dealt.config, shards)] == [128] * 4
    attention, delta = (layout(dealt.params.layers[layer].mixer) for layer in (1, 0))
    assert {attention.q, attention.k, attention.v, delta.qkv, delta.z, delta.a, delta.b} == {DEALT}


def test_a_device_holds_its_own_slice_of_whatever_lies_over_the_vocabulary(exact_model):
    dealt = fnx_jax.load(FOLDER / "base", devices=2, dtype="float32", lanes=1, context=64)
    steps, vocabulary = dealt.steps, dealt.config.vocabulary
    streams = jax.device_put(np.ones((16, dealt.config.streams * dealt.config.hidden), np.float32))
    logits = steps.programs.logits(steps.device.params, streams)
    assert layout((logits, steps.device.valid_V)) == (DEALT, DEALT)
    assert logits.shape == (2, 16, 128) and steps.device.valid_V.shape == (2, 128)
    assert np.isneginf(np.asarray(logits)[1]).all()  # one block: the second device holds padding
    whole = steps.programs.whole(logits)
    assert layout(whole) != DEALT and whole.shape == (16, vocabulary)
    one = exact_model("base").steps
    assert np.array_equal(whole, one.programs.whole(one.programs.logits(one.device.params, streams)))


def test_a_kv_head_lies_where_its_query_heads_are():
    config = fnx_jax.load(FOLDER / "long_eos", dtype="float32", lanes=1, context=64).config
    columns = kv_columns(config, deal(config, 2))
    assert [list(part) for part in columns] == [list(range(config.head_size))] * 2


def test_the_vocabulary_is_dealt_in_blocks(exact_model):
    config = exact_model("base").config
    assert [len(part) for part in vocabulary_columns(config, deal(config, 2))] == [128, 0]


@pytest.mark.parametrize(
    ("devices", "word"), [(0, "at least 1"), (3, "power of two"), (8, "query heads"), (32, "leaves")]
)
def test_devices_that_do_not_divide_are_refused(devices, word):
    with pytest.raises(ValueError, match=word):
        fnx_jax.load(FOLDER / "base", devices=devices)


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"this machine has 4; .*jax_num_cpu_devices"):
        fnx_jax.load(FOLDER / "four_ranks", devices=8)
