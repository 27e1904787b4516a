"""In served arithmetic every layer of the sequence functions stays within the rounding of a bfloat16 reference."""

import dataclasses
import functools
import math

import jax
import numpy as np

from fnx_jax.families.flash_next.sequence import functions
from tests.fnx_jax.families.sequence_model import layer_values, sequence_model

UNIT = 2.0**-8
"""Largest relative error of one rounding to bfloat16 (8 significant bits)."""
ROUNDINGS = 36
"""Roundings on the longest path through a layer of the reference: read 7, recurrent block 8, write 2, read 7,
experts 10 (projection, silu, product, projection, weight, four sums, the shared sum), write 2."""


@functools.cache
def layers(delta_gate: str | None = None) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Each layer's reference output and our values, from the reference's own input to that layer."""
    model = sequence_model("base", exact=False)
    config = model.config if delta_gate is None else dataclasses.replace(model.config, delta_gate=delta_gate)
    f = functions(config)
    step = jax.jit(functools.partial(layer_values, f))
    streams, found = np.asarray(f.embed(model.params, model.tokens(0))), []
    for i, params in enumerate(model.params.layers if delta_gate is None else model.params.layers[:1]):
        ngram = model.ngrams[0][:, 0] if i in config.ngram_layers else None
        wanted = model.case[f"p0.bf16.hidden.{i}"]
        found.append((wanted, jax.device_get(step(streams, params, ngram))))
        streams = wanted
    return found


def agreeing_rows(layer: int, value: dict[str, np.ndarray]) -> np.ndarray:
    """Rows whose experts are the reference's; it picks from rounded logits, so a near tie may fall otherwise."""
    wanted = sequence_model("base", exact=False).case[f"p0.bf16.router_ids.{layer}"]
    return (np.sort(value["router_ids"], axis=1) == np.sort(wanted, axis=1)).all(axis=1)


def errors(wanted: np.ndarray, hidden: np.ndarray) -> tuple[float, float]:
    """Root mean square error relative to the values', and the largest error relative to the largest value."""
    off = hidden - wanted
    return math.sqrt((off**2).mean() / (wanted**2).mean()), float(np.abs(off).max() / np.abs(wanted).max())


def test_layers_stay_within_the_rounding_of_a_bfloat16_reference():
    """Bound: the reference rounds every intermediate to bfloat16, we round operands only, so the difference is its
    rounding error (our own roundings fall on values that it rounds too).

    To first order a rounding is an independent relative error, uniform within +-UNIT, whose root mean square is
    UNIT / sqrt(3); norms and gates pass a relative error on with a gain of about one. ROUNDINGS of them on a path add
    up like a random walk: sqrt(ROUNDINGS / 3) * UNIT = 1.4 % in root mean square. For a single value every step of the
    walk is taken at its largest: sqrt(ROUNDINGS) * UNIT = 2.3 % of the largest value.
    """
    for i, (wanted, value) in enumerate(layers()):
        rows = agreeing_rows(i, value)
        assert rows.mean() > 0.9
        mean, worst = errors(wanted[rows], value["hidden"][rows])
        print(f"layer {i}: {mean:.4f} in root mean square, {worst:.4f} at most, {(~rows).sum()} rows apart")
        assert mean < math.sqrt(ROUNDINGS / 3) * UNIT
        assert worst < math.sqrt(ROUNDINGS) * UNIT


def test_visible_tokens_equal_those_of_the_bfloat16_reference():
    case = sequence_model("base", exact=False).case
    found = {i: value["qsa_mask"] for i, (_, value) in enumerate(layers()) if "qsa_mask" in value}
    assert len(found) == 2
    for i, mask in found.items():
        assert np.array_equal(mask, case[f"p0.bf16.qsa_mask.{i}"].astype(bool))


def test_rows_with_other_picks_stood_at_a_near_tie():
    """The two logits at the border of the picks must lie within both of their errors: the reference rounds logits
    once, after the seven roundings of the read and seventeen of the mixer and its write."""
    model = sequence_model("base", exact=False)
    for i, (_, value) in enumerate(layers()):
        router = np.asarray(model.params.layers[i].moe.router).astype(np.float32)
        logits = np.sort(value["mlp_in"] @ router.T, axis=1)
        border = logits[:, -model.config.active_experts] - logits[:, -model.config.active_experts - 1]
        reach = 2 * math.sqrt(25) * UNIT * np.abs(logits).max(axis=1)
        assert (border <= reach)[~agreeing_rows(i, value)].all()


def test_the_wrong_output_gate_breaks_the_bound():
    wanted, value = layers(delta_gate="silu")[0]
    mean, worst = errors(wanted, value["hidden"])
    assert mean > math.sqrt(ROUNDINGS / 3) * UNIT
    assert worst > math.sqrt(ROUNDINGS) * UNIT
