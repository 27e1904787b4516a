"""Host side: drafts from someone who knows the reply and lies now and then. What they are may not change a token."""

from collections.abc import Mapping, Sequence

from fnx_jax.engine.lane import Lane
from fnx_jax.engine.plan import Drafts

PATTERNS = ((True, True, True), (True, False, True), (False,), (), (True, True, False, True))
"""By the number of reply tokens so far: which of the proposed tokens are the reply's own."""


def proposals(replies: Mapping[str, Sequence[int]], vocabulary: int) -> Drafts:
    """Drafts by request id from known replies, right and wrong ones in a fixed pattern."""

    def propose(lane: Lane) -> list[int]:
        ahead = replies[lane.request.id][lane.replied :]
        pattern = PATTERNS[lane.replied % len(PATTERNS)]
        return [token if right else (token + 1) % vocabulary for token, right in zip(ahead, pattern, strict=False)]

    return propose
