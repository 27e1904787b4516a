"""Messages come back as they were, and nothing else is taken for one."""

import dataclasses

import msgspec
import numpy as np
import pytest

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.steps import DraftPlan, DraftRow, Draw, RoundPlan, Score
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.messages import Beat, Commit, Draft, Round, decode, encode, most_bytes

VOCABULARY = 64


def plan(draws: int = 2, history: int = 2) -> RoundPlan:
    rng = np.random.default_rng(0)
    full = Draw(
        row=1,
        position=9,
        seed=2**64 - 1,
        temperature=0.1 + 0.2,
        top_p=np.float32(0.95),
        counts_V=rng.integers(0, 9, VOCABULARY, dtype=np.int32),
        seen_V=rng.integers(0, 2, VOCABULARY).astype(bool),
        bias_V=np.where(rng.random(VOCABULARY) < 0.5, -np.inf, 1e-40).astype(np.float32),
        logprobs=3,
    )
    return RoundPlan(
        token_B=np.arange(2, dtype=np.int32),
        lane_B=np.zeros(2, np.int32),
        position_B=np.array([7, 8], np.int32),
        speculative_B=np.array([False, True]),
        history_BN=np.full((2, history), -1, np.int32),
        pages_LP=np.arange(8, dtype=np.int32).reshape(4, 2).T,
        draws=(Draw(row=np.int64(0), position=8, seed=0), *[full] * (draws - 1)),
        scores=(Score(row=0, target=5, top=2),),
    )


def same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    return one == other


@pytest.mark.parametrize("history", [2, 0])  # none where no layer looks at earlier tokens
def test_a_plan_comes_back_bit_for_bit(history):
    sent, message = plan(history=history), decode(encode(Round(plan(history=history))))
    assert isinstance(message, Round) and same(sent, message.plan)


def test_a_plan_of_drafts_comes_back_bit_for_bit():
    rows = tuple(DraftRow(lane=lane, position=7, token=3, draw=draw, depth=4) for lane, draw in enumerate(plan().draws))
    sent = DraftPlan(rows, plan().pages_LP, confidence=0.1)
    message = decode(encode(Draft(sent)))
    assert isinstance(message, Draft) and same(sent, message.plan)


def test_a_difference_in_one_element_is_seen():
    message = decode(encode(Round(plan())))
    assert isinstance(message, Round)
    message.plan.token_B[1] += 1
    assert not same(plan(), message.plan)


def test_arrays_are_the_receivers_own_and_aligned():
    message = decode(encode(Commit(np.arange(3, dtype=np.int32))))
    assert isinstance(message, Commit)
    length = message.length
    assert length.flags.writeable and length.flags.aligned and length.tolist() == [0, 1, 2]


def array(dtype: str, shape: list[int], data: bytes) -> bytes:
    return msgspec.msgpack.encode({"type": "Commit", "length": [dtype, shape, data]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04junk",
        msgspec.msgpack.encode({"type": "Beat"}),
        msgspec.msgpack.encode({"type": "Beat", "compilations": "1"}),
        msgspec.msgpack.encode({"type": "Beat", "compilations": 1, "more": 2}),
        msgspec.msgpack.encode({"type": "Call", "name": "os.system"}),
        msgspec.msgpack.encode({"type": "Facts", "values": {"lanes": 4}}),
        array("object", [1], b"12345678"),
        array("int32", [2], b"1234"),
        array("int32", [-1], b"1234"),
        array("int32", [-1, -1], b"1234"),
        encode(Beat(1)) + b"\x00",
    ],
)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(RankLost, match="a message that is none"):
        decode(data)


def test_an_array_of_another_dtype_is_not_sent():
    with pytest.raises(NotImplementedError):
        encode(Commit(np.zeros(1, np.float64)))


def test_the_largest_round_fits_its_bound():
    steps = FakeSteps(lanes=2, context=16, page=8, vocabulary=VOCABULARY, max_rows=16)
    assert len(encode(Round(plan(draws=16)))) < most_bytes(steps)
