"""The sequence functions reproduce what the reference computes on tiny models, inside every layer and at the end."""

import functools

import jax
import numpy as np
import pytest

from tests.fnx_jax.cases import CASES, distance
from tests.fnx_jax.families.sequence_model import SequenceModel, network_values, sequence_model

LIMIT = 1e-4
EXACT = ("router_ids", "qsa_mask")


@functools.cache
def values(name: str) -> list[dict[str, np.ndarray]]:
    """All inner values of every prompt: one program a case, prompts padded at the end and batched by vmap."""
    model = sequence_model(name)
    rows = [len(ngram) for ngram in model.ngrams]
    token = np.stack([padded(model.tokens(p), max(rows)) for p in model.case.prompts])
    following = np.stack([padded(next_tokens(model, p), max(rows)) for p in model.case.prompts])
    ngram = np.stack([padded(ngram, max(rows)) for ngram in model.ngrams])
    batched = jax.vmap(functools.partial(network_values, model.functions), in_axes=(None, 0, 0, 0))
    found = jax.device_get(jax.jit(batched)(model.params, token, ngram, following))
    return [
        {key: (value[p, :T, :T] if "qsa_mask" in key else value[p, :T]) for key, value in found.items()}
        for p, T in enumerate(rows)
    ]


def padded(a: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(a, [(0, rows - len(a))] + [(0, 0)] * (a.ndim - 1))


def next_tokens(model: SequenceModel, prompt: int) -> np.ndarray:
    first = model.case[f"p{prompt}.fp32.greedy_ids"][:1].astype(np.int32)
    return np.concatenate([model.tokens(prompt)[1:], first])


@pytest.mark.parametrize("name", CASES)
def test_logits_match_the_reference(name):
    for p, found in enumerate(values(name)):
        worst = distance(found["fp32.logits"], sequence_model(name).case[f"p{p}.fp32.logits"])
        print(f"{name} p{p}: logits off by {worst:.1e} of the largest")
        assert worst < LIMIT


@pytest.mark.parametrize("name", CASES)
def test_router_picks_and_visible_tokens_are_exact(name):
    case, compared = sequence_model(name).case, 0
    for p, found in enumerate(values(name)):
        for key in (key for key in found if key.split(".")[1] in EXACT):
            assert np.array_equal(found[key], case[f"p{p}.{key}"]), key
            compared += 1
    assert compared == len(case.prompts) * sum(key.split(".")[1] in EXACT for key in values(name)[0])


@pytest.mark.parametrize("name", CASES)
def test_every_stored_inner_value_matches(name):
    case, compared = sequence_model(name).case, set()
    for p, found in enumerate(values(name)):
        for key in (key for key in found if key.startswith("fp32.") and f"p{p}.{key}" in case):
            kind = key.split(".")[1]
            value = found[key][case[f"p{p}.positions"]] if kind == "hidden" else found[key]
            assert distance(value, case[f"p{p}.{key}"]) < LIMIT, key
            compared.add(kind)
    assert {"hidden", "router_w", "streams_final", "final_hidden"} <= compared


def test_base_blocks_were_compared_in_every_layer():
    case = sequence_model("base").case
    kinds = ("attn_in", "attn_out", "mlp_in", "mlp_out", "hidden")
    stored = {f"p0.fp32.{kind}.{layer}" for kind in kinds for layer in range(6)}
    assert all(key in case and key.removeprefix("p0.") in values("base")[0] for key in stored)


@pytest.mark.parametrize("name", CASES)
def test_draft_logits_match(name):
    case, compared = sequence_model(name).case, 0
    for p, found in enumerate(values(name)):
        if f"p{p}.mtp.logits" in case:
            assert distance(found["mtp.logits"], case[f"p{p}.mtp.logits"]) < LIMIT
            compared += 1
    assert compared


def test_forward_of_one_row_matches():
    model = sequence_model("official_names")
    logits = jax.jit(model.functions.forward)(model.params, model.tokens(0)[:1], model.ngrams[0][:1])
    assert distance(np.asarray(logits), model.case["p0.fp32.logits"][:1]) < LIMIT
