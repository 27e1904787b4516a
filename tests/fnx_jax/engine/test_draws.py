"""Counts, seen ids, bias and masks: right, only where needed, and never written again once handed out."""

import numpy as np

from fnx_jax.engine.draws import DrawArrays
from fnx_jax.engine.request import Request, SamplingParams
from tests.fnx_jax.engine.support import plain_draw


def arrays(prompt=(3, 4), vocabulary=16, **sampling):
    return DrawArrays(Request("r", prompt, SamplingParams(**sampling)), vocabulary)


def test_request_without_penalties_or_bias_has_no_arrays():
    draw = arrays(eos_token_ids=(1,)).draw(0, 2, 0)
    assert draw.counts_V is None and draw.seen_V is None and draw.bias_V is None


def test_arrays_equal_those_made_from_prompt_and_reply():
    sampling = SamplingParams(
        frequency_penalty=0.5, repetition_penalty=1.2, logit_bias=((2, 1.5), (2, 1.0)), min_tokens=2, eos_token_ids=(1,)
    )
    built, reply = DrawArrays(Request("r", (3, 4), sampling), 16), []
    for token in (7, 7, 3, 9):
        draw, wanted = built.draw(5, 2 + len(reply), len(reply)), plain_draw(sampling, (3, 4), reply, 16)
        for name in ("counts_V", "seen_V", "bias_V"):
            got = getattr(draw, name)
            assert got.dtype == getattr(wanted, name).dtype
            np.testing.assert_array_equal(got, getattr(wanted, name))
        built.commit(token)
        reply.append(token)


def test_drafts_ahead_count_without_being_committed():
    built = arrays(presence_penalty=1.0)
    built.commit(7)
    counts_V = built.draw(0, 5, 3, ahead=(7, 9)).counts_V
    assert counts_V is not None and (counts_V[7], counts_V[9]) == (2, 1)
    counts_V = built.draw(0, 3, 1).counts_V
    assert counts_V is not None and (counts_V[7], counts_V[9]) == (1, 0)


def test_arrays_handed_out_are_not_written_again():
    built = arrays(presence_penalty=1.0, logit_bias=((2, 1.0),))
    draw = built.draw(0, 2, 0)
    assert draw.counts_V is not None and draw.seen_V is not None and draw.bias_V is not None
    before = draw.counts_V.copy(), draw.seen_V.copy()
    built.commit(7)
    np.testing.assert_array_equal(draw.counts_V, before[0])
    np.testing.assert_array_equal(draw.seen_V, before[1])
    assert not draw.bias_V.flags.writeable


def test_mask_forbids_all_that_would_end_the_reply_until_min_tokens():
    built = arrays(min_tokens=2, eos_token_ids=(1,), stop_token_ids=(5,))
    masked_V = built.draw(0, 3, 1).bias_V
    assert masked_V is not None and np.flatnonzero(np.isneginf(masked_V)).tolist() == [1, 5]
    assert built.draw(0, 4, 2).bias_V is None
    ignoring = arrays(min_tokens=2, eos_token_ids=(1,), stop_token_ids=(5,), ignore_eos=True).draw(0, 2, 0).bias_V
    assert ignoring is not None and np.flatnonzero(np.isneginf(ignoring)).tolist() == [5]


def test_negative_seed_becomes_its_64_bits():
    assert arrays(seed=-1).draw(0, 2, 0).seed == 2**64 - 1
