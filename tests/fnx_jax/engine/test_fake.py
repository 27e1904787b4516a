"""The fake device notices wrong plans: each test is a right plan with one thing broken."""

from dataclasses import replace

import numpy as np
import pytest

from fnx_jax.engine.fake import FakeSteps, Faults, PlanError
from fnx_jax.engine.steps import Draw, RoundPlan, Score


def rows(tokens, lanes, positions, pages_LP, history, draws=(), speculative=()):
    return RoundPlan(
        token_B=np.array(tokens, np.int32),
        lane_B=np.array(lanes, np.int32),
        position_B=np.array(positions, np.int32),
        speculative_B=np.isin(np.arange(len(tokens)), speculative),
        history_BN=np.array(history, np.int32),
        pages_LP=np.array(pages_LP, np.int32),
        draws=draws,
    )


def first():
    """Two prompt rows in lane 0, one in lane 1."""
    history = [[-1], [9], [-1]]
    return rows([9, 8, 7], [0, 0, 1], [0, 1, 0], [[0, -1], [1, -1]], history, (Draw(1, 2, 5), Draw(2, 1, 5)))


def second():
    """The next row of both lanes; lane 0 enters its second page."""
    return rows([6, 5], [0, 1], [2, 1], [[0, 2], [1, -1]], [[8], [7]], (Draw(0, 3, 5),))


def fake(**options):
    return FakeSteps(lanes=2, context=4, page=2, vocabulary=16, history=1, row_tile=4, max_rows=8, **options)


def test_right_plans_run_and_repeat():
    results = []
    for _ in range(2):
        steps = fake()
        results.append((steps.round(first()), steps.round(second())))
    assert results[0] == results[1]
    assert all(output.finite == (True,) * len(output.tokens) for output in results[0])


def test_draw_depends_on_the_whole_history_and_on_the_noise_key():
    def tokens(plan, key):
        drawn = []
        for value in range(12):
            draw = replace(second().draws[0], temperature=3.0, **{key: value})
            steps = fake()
            steps.round(plan)
            drawn.append(steps.round(replace(second(), draws=(draw,))).tokens[0])
        return drawn

    other = replace(first(), token_B=np.array([1, 8, 7], np.int32), history_BN=np.array([[-1], [1], [-1]], np.int32))
    for key in ("seed", "choice"):
        assert tokens(first(), key) == tokens(first(), key)
        assert len(set(tokens(first(), key))) > 3
        assert tokens(other, key) != tokens(first(), key)


@pytest.mark.parametrize(
    "change",
    [
        {"position_B": np.array([3, 1], np.int32), "draws": ()},
        {"position_B": np.array([1, 1], np.int32), "draws": ()},
        {"lane_B": np.array([0, 0], np.int32)},
        {"history_BN": np.array([[9], [7]], np.int32)},
        {"pages_LP": np.array([[0, -1], [1, -1]], np.int32)},
        {"pages_LP": np.array([[0, 1], [1, -1]], np.int32)},
        {"pages_LP": np.array([[3, 2], [1, -1]], np.int32)},
        {"pages_LP": np.array([[1, 2], [0, -1]], np.int32)},
        {"draws": (Draw(0, 2, 5),)},
        {"draws": (Draw(0, 3, 5), Draw(0, 3, 5))},
        {"draws": (Draw(2, 3, 5),)},
        {"scores": (Score(5, 1),)},
        {"token_B": np.array([6, 16], np.int32)},
        {"token_B": np.array([6, 5], np.int64)},
        {"speculative_B": np.array([True, False])},
    ],
)
def test_broken_plan_is_refused(change):
    steps = fake()
    steps.round(first())
    with pytest.raises(PlanError):
        steps.round(replace(second(), **change))


def test_rows_out_of_order_are_refused():
    plan = first()
    with pytest.raises(PlanError):
        fake().round(replace(plan, position_B=np.array([1, 0, 0], np.int32), draws=()))
    with pytest.raises(PlanError, match="contiguous"):
        fake().round(rows([9, 7, 8], [0, 1, 0], [0, 0, 1], [[0, -1], [1, -1]], [[-1], [-1], [9]]))


def test_page_that_another_stream_wrote_is_stale():
    steps = fake()
    steps.round(first())
    steps.round(rows([3], [1], [0], [[-1, -1], [0, -1]], [[-1]]))  # lane 1 starts again, in lane 0's page
    with pytest.raises(PlanError, match="another stream"):
        steps.round(rows([6], [0], [2], [[0, 2], [-1, -1]], [[8]], (Draw(0, 3, 5),)))


def test_only_drafts_may_be_written_over():
    steps = fake()
    pages_LP = [[0, 2], [-1, -1]]
    steps.round(rows([9, 8, 7], [0, 0, 0], [0, 1, 2], pages_LP, [[-1], [9], [8]], speculative=(2,)))
    with pytest.raises(PlanError, match="position 1"):
        steps.round(rows([6], [0], [1], pages_LP, [[9]]))
    steps.round(rows([6], [0], [2], pages_LP, [[8]]))
    with pytest.raises(PlanError, match="position 2"):
        steps.round(rows([6], [0], [2], pages_LP, [[8]]))


def test_bias_forbids_and_all_forbidden_is_not_finite():
    steps = fake()
    bias_V = np.full(16, -np.inf, np.float32)
    bias_V[11] = 0
    plan = first()
    output = steps.round(
        replace(plan, draws=(Draw(1, 2, 5, bias_V=bias_V), Draw(2, 1, 5, bias_V=np.full_like(bias_V, -np.inf))))
    )
    assert output.tokens[0] == 11 and output.finite == (True, False)


def test_faults_fail_the_round_or_the_rows_after_a_token():
    steps = fake(faults=Faults(fail_rounds=frozenset({1}), nonfinite_tokens=frozenset({8})))
    assert steps.round(first()).finite == (False, True)
    with pytest.raises(RuntimeError, match="round 1"):
        steps.round(second())


def test_script_forces_the_next_token():
    steps = fake(script=lambda tokens: 13 if tokens == [9, 8] else None)
    assert steps.round(first()).tokens[0] == 13
