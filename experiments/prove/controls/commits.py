"""Host side: a window's accepted rows taken in by `commit`, against the same rows run for certain."""

import numpy as np

from experiments.prove.controls.rows import Piece, difference, prompts, run, tiny_steps

ROWS, PROMPT, ACCEPTED = 40, 20, 30


def commits() -> str | None:
    """The rows after a commit, and the recurrent states it leaves."""
    steps = tiny_steps("base")
    (ids,) = prompts(steps, 1, ROWS, seed=7)
    wanted = run(steps, [Piece(3, ids, 0, ROWS)])
    run(steps, [Piece(3, ids, 0, ACCEPTED)])
    plain = [np.asarray(delta.committed[3]) for delta in steps.state.cache.delta]
    run(steps, [Piece(3, ids, 0, PROMPT)])
    run(steps, [Piece(3, ids, PROMPT, ACCEPTED + 6, certain=PROMPT + 1)])
    steps.commit(np.array([0, 0, 0, ACCEPTED], np.int32))
    for layer, (state, delta) in enumerate(zip(plain, steps.state.cache.delta, strict=True)):
        if not np.array_equal(np.asarray(delta.committed[3]), state):
            return f"plain: recurrent layer {layer} holds another state after {ACCEPTED - PROMPT - 1} accepted drafts"
    logits = run(steps, [Piece(3, ids, ACCEPTED, ROWS)])
    return difference("plain, after a commit", logits, wanted[ACCEPTED:], ACCEPTED)
