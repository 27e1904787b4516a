"""Host side: several devices against one, by the raw logits of every row."""

from functools import partial

from experiments.prove.controls.rows import Piece, difference, prompts, run, tiny_steps

ROWS = 21


def ranks(name: str, devices: int) -> str | None:
    """A prompt of a tile and a few rows on a tiny model."""
    one, several = tiny_steps(name), tiny_steps(name, devices)
    (ids,) = prompts(one, 1, ROWS, seed=11)
    wanted, found = (run(steps, [Piece(0, ids, 0, ROWS)]) for steps in (one, several))
    return difference(f"ranks, {devices} devices", found, wanted, 0)


two_ranks = partial(ranks, "silu_two_ple", 2)
four_ranks = partial(ranks, "long_eos", 4)
