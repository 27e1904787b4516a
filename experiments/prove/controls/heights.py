"""Host side: a prompt run with one live row in a tile and with many."""

import numpy as np

from experiments.prove.controls.rows import Piece, difference, prompts, run, tiny_steps

ROWS = 17


def heights() -> str | None:
    """A whole tile and a last row, against a first row and a whole tile."""
    steps = tiny_steps("long_eos")
    (ids,) = prompts(steps, 1, ROWS, seed=9)
    wanted = run(steps, [Piece(0, ids, 0, ROWS)])
    found = [run(steps, [Piece(0, ids, start, stop)]) for start, stop in ((0, 1), (1, ROWS))]
    return difference("chunk [0, 1), tiles of one row and of sixteen", np.concatenate(found), wanted, 0)
