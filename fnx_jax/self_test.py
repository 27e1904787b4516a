"""Host side: shows, before a model serves, that its rows keep their bits on this machine.

One prompt runs whole, then row by row in company; every logit must agree bit for bit. Then it is continued with drafts
and without; the tokens must be the same.
"""

from collections.abc import Sequence

import numpy as np

from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.lanes import teacher
from fnx_jax.lanes.rounds import DeviceSteps

ROWS = 21
DRAFTS = 4


class SelfTestError(RuntimeError):
    """The rows of this model depend on their company here, or are not finite; nothing it serves could be trusted."""


def self_test(steps: DeviceSteps) -> None:
    """Raises SelfTestError where a row depends on chunks or neighbours, or is not finite. Rounds must be at rest."""
    most = min(ROWS, steps.context)
    ids = (np.arange(most) * 37 + 11) % steps.vocabulary
    whole = teacher.logits(steps, ids)
    if not np.isfinite(whole).all():
        row = int(np.argwhere(~np.isfinite(whole).all(axis=1))[0, 0])
        raise SelfTestError(f"row {row} of a prompt has logits that are non-finite (NaN or infinity)")
    for cuts in (range(1, most), (most // 2,)):
        pieces = _in_pieces(steps, ids, (0, *cuts, most))
        if not np.array_equal(pieces, whole):
            row = int(np.argwhere((pieces != whole).any(axis=1))[0, 0])
            raise SelfTestError(f"row {row} of a prompt changed when the prompt was cut into {len(cuts) + 1} pieces")
    if steps.draft_depth and _continued(steps, ids, DRAFTS) != _continued(steps, ids, 0):
        raise SelfTestError("a reply changed when it was drafted")


def _continued(steps: DeviceSteps, ids: np.ndarray, depth: int) -> list[int]:
    """A reply to some of the ids, drafted so deep in every round."""
    prompt = tuple(ids[: max(1, len(ids) - 2 * DRAFTS)].tolist())
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=2 * DRAFTS)
    engine = Engine(steps, drafter=FixedDepth(depth))
    (emissions,) = engine.run([Request("self-test", prompt, sampling)]).values()
    if engine.failed is not None:
        raise engine.failed
    return [token for emission in emissions for token in emission.tokens]


def _in_pieces(steps: DeviceSteps, ids: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """The prompt's logits, piece by piece; where there is a second lane, another prompt shares every tile."""
    parts = []
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        parts.append(teacher.piece_logits(steps, ids, start, stop, company=ids[::-1]))
    return np.concatenate(parts)
