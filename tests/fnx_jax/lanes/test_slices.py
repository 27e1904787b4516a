"""Ranks that hold slices of the vocabulary draw, filter and report what one device does, and gather only lists."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from fnx_jax.axes import RANKS
from fnx_jax.lanes.logprobs import row_logprobs
from fnx_jax.lanes.sampling import CANDIDATES, draw_adjusted, finite_rows
from fnx_jax.mesh import DEALT
from fnx_jax.vocabulary_slices import Slices
from tests.fnx_jax.lanes import sliced
from tests.fnx_jax.lanes.mistakes import MISTAKES, plant_in_widening, planted_report
from tests.fnx_jax.lanes.sliced import KINDS, case, dealt, defined, differing, kept, kept_in_order, on_slices, report

V = 1000
"""Eight blocks, the last not whole."""
SEEDS = range(4)


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "candidates"), [(V, 2, sliced.CANDIDATES), (V, 4, sliced.CANDIDATES), (130, 4, 1024)]
)
def test_ranks_draw_and_report_the_bits_of_one_device(vocabulary, ranks, candidates):
    """With 130 ids, two of four ranks hold nothing but padding, and every candidate is listed."""
    on_ranks = on_slices(partial(report, candidates=candidates), vocabulary, ranks)
    for kind in KINDS:
        for seed in SEEDS:
            arguments = case(kind, vocabulary, seed)
            found, wanted = on_ranks(dealt(arguments, ranks)), defined(arguments)
            assert differing(found, wanted) == set(), (kind, seed)


def test_the_rows_exercise_what_they_should():
    finite = {kind: np.asarray(defined(case(kind, V, 0))["finite"]) for kind in KINDS}
    assert not finite["empty"].any() and finite["normal"].all()
    assert 0 < finite["spoiled"].sum() < len(finite["spoiled"])
    counts_B = np.asarray(kept_in_order(case("ties", V, 0))[1]).sum(axis=1)
    assert (counts_B > sliced.CANDIDATES).sum() > 3 and (counts_B <= sliced.CANDIDATES).sum() > 3
    ids_BK = np.asarray(defined(case("ties", V, 0))["ids"])
    assert ((ids_BK < 512).any(axis=1) & (ids_BK >= 512).any(axis=1)).all()


def test_what_is_kept_without_sorting_is_what_the_order_keeps():
    on_ranks = on_slices(kept, V, 2, DEALT)
    for kind in KINDS:
        arguments = case(kind, V, 0)
        found_BV = np.concatenate(list(np.asarray(on_ranks(dealt(arguments, 2)))), axis=1)
        ids_BK, kept_BK = map(np.asarray, kept_in_order(arguments))
        wanted_BV = np.zeros_like(found_BV)
        np.put_along_axis(wanted_BV, ids_BK, kept_BK, axis=1)
        logits, valid, *_ = arguments
        drawable_B = np.isfinite(np.where(valid, logits, -np.inf).max(axis=1))
        assert np.array_equal(found_BV[drawable_B], wanted_BV[drawable_B]), kind


@pytest.fixture(scope="module")
def planted() -> Iterator[Any]:
    """The report of two ranks that may make a mistake."""
    with pytest.MonkeyPatch.context() as patch:
        plant_in_widening(patch)
        yield planted_report(V, 2)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_apart(mistake, planted):
    wrong = set()
    for kind in KINDS:
        arguments = case(kind, V, 1)
        found, wanted = planted(arguments, MISTAKES.index(mistake)), defined(arguments)
        wrong |= differing(found, {name: np.stack([value] * 2) for name, value in wanted.items()})
    assert bool(wrong) == (mistake != "none"), wrong


@pytest.mark.parametrize(("slices", "word"), [(Slices(V, 512, 2), "512"), (Slices(1 << 19, V, 1 << 10), "524288 ids")])
def test_slices_that_do_not_fit_are_refused(slices, word):
    *drawn, _ = case("normal", V, 0)
    with pytest.raises(ValueError, match=word):
        draw_adjusted(*drawn, slices=slices)


def gathered_sizes(jaxpr: Any) -> list[int]:
    """Entries of every array that a program gathers; any other exchange between ranks is an error."""
    sizes = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "all_gather":
            sizes.append(eqn.outvars[0].aval.size)
        elif RANKS in jax.tree.leaves((eqn.params.get("axis_name"), eqn.params.get("axes"))) and name != "axis_index":
            raise AssertionError(f"{name} crosses ranks")
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            sizes += gathered_sizes(inner) if hasattr(inner, "eqns") else []
    return sizes


@pytest.mark.parametrize("ranks", [2, 4])
def test_no_rank_is_sent_the_logits(ranks):
    slices = Slices(248320, 248320 // ranks, ranks)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            tuple(slices.width if n == V else n for n in leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype)
        ),
        case("normal", V, 0),
    )
    rows, (*drawn, target) = shapes[0].shape[0], shapes

    def sizes(function: Any, *arguments: Any) -> list[int]:
        traced = jax.make_jaxpr(partial(function, slices=slices), axis_env=[(RANKS, ranks)])(*arguments)
        return gathered_sizes(traced.jaxpr)

    of_draw = sizes(draw_adjusted, *drawn)
    assert max(of_draw) == rows * ranks * CANDIDATES
    assert max(sizes(lambda x, t, slices: row_logprobs(x, t, 20, slices), drawn[0], target)) == rows * 248320 // 128
    assert sizes(finite_rows, drawn[0]) == [rows * ranks]
    assert max(sizes(lambda x, slices: slices.gathered(x), drawn[0])) == rows * 248320
    with pytest.raises(AssertionError, match="psum"):
        sizes(lambda x, slices: jax.lax.psum(x, RANKS), drawn[0])
    narrow = sizes(partial(draw_adjusted, candidates=1), *drawn)
    assert len(narrow) == len(of_draw) > 8 and max(narrow) == 3 * rows * ranks
