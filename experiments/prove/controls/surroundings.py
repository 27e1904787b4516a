"""Host side: two layers as one program against each half of a layer a program of its own, bit for bit."""

from dataclasses import replace

import jax
import numpy as np

from experiments.prove.controls.rows import Piece, prompts, round_plan, tiny_steps
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.state import emptied
from fnx_jax.lanes.tiles import cut

LAYERS, ROWS = 2, 13


def surroundings() -> str | None:
    """Streams and state after a recurrent layer and an attention layer."""
    steps = tiny_steps("silu_two_ple")
    params = replace(steps.device.params, layers=steps.device.params.layers[:LAYERS])
    short = replace(steps, device=replace(steps.device, params=params))
    whole = replace(short, layered=False, state=emptied(steps.state))
    (ids,) = prompts(steps, 1, ROWS, seed=17)
    apart, together = _after(short, ids), _after(whole, ids)
    for name, value in apart.items():
        unequal = int((value.view(np.uint32) != together[name].view(np.uint32)).sum())
        if unequal:
            return f"one program: {unequal} of {value.size} numbers differ in {name} after {LAYERS} layers"
    return None


def _after(steps: DeviceSteps, ids: np.ndarray) -> dict[str, np.ndarray]:
    plan = round_plan(steps, [Piece(0, ids, 0, ROWS)])
    (tile,) = cut(plan)
    streams = steps.run_tile(plan, tile, steps.device.ngrams.embeddings(plan.token_B, plan.history_BN))
    leaves = jax.tree_util.tree_flatten_with_path(steps.state)[0]
    values = {f"state{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
    return {"streams": np.asarray(streams)[:ROWS], **values}
