"""Host side: wrong twins of what the host decides: plans, acceptance, penalties, stops, staging. Read next: ties.py."""

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.fakes import fake_replies
from experiments.prove.controls.replies import replies
from experiments.prove.controls.staging import one_ahead
from fnx_jax.engine import conclude, plan
from fnx_jax.engine.conclude import Drawn, Gain
from fnx_jax.engine.draws import DrawArrays
from fnx_jax.engine.pages import PagePool
from fnx_jax.engine.plan import Segment
from fnx_jax.lanes import rounds

ANSWERS, HISTORY, TAKE, ALLOC, PENALTY_ARRAYS = (
    conclude._answers,
    plan._history,
    conclude._take,
    PagePool.alloc,
    DrawArrays._penalty_arrays,
)


def history_of_the_chunk(segment: Segment, depth: int):
    """Looks back to the first row of the round and no further."""
    history_BN = HISTORY(segment, depth).copy()
    for row in range(min(depth, len(history_BN))):
        history_BN[row, row:] = -1
    return history_BN


def accept_then_stop(segment: Segment, drawn: list[Drawn]) -> Gain:
    """Walks the whole window, then asks whether the reply has ended."""
    lane, tokens, end = segment.lane, [], None
    drafts = segment.tokens[len(segment.tokens) - segment.drafts :]
    for row, result in enumerate(drawn):
        end = lane.commit(result.token) or end
        tokens.append(result.token)
        if row == len(drafts) or drafts[row] != result.token:
            break
        lane.filled += 1
    return Gain(tuple(tokens), (), end)


def accept_unseen(segment: Segment, drawn: list[Drawn]) -> Gain:
    """Emits the first draft whatever was drawn in its place."""
    drafts = segment.tokens[len(segment.tokens) - segment.drafts :]
    taken = [Drawn(drafts[0], True, None), *drawn[1:]] if drafts else drawn
    return ACCEPT(segment, taken)


def penalties_with_drafts(self, ahead):
    """Counts drafts as replied, and does not take them back where they are rejected."""
    for token in ahead:
        self.commit(token)
    return PENALTY_ARRAYS(self, ())


def answers_reversed(planned, output):
    """Deals a round's draws to its lanes from the last to the first."""
    draws, scores = ANSWERS(planned, output)
    return reversed(list(draws)), scores


def pages_shared(self, count):
    """Gives pages that stay free."""
    taken = ALLOC(self, count)
    self._free.extend(reversed(taken))
    return taken


ACCEPT = conclude._accept

CONTROLS: tuple[Control, ...] = (
    planted(
        "history_of_the_chunk",
        "4",
        "n-grams look back to the chunk's first row and no further",
        replies,
        Plant(plan, "_history", history_of_the_chunk),
    ),
    planted(
        "staging_rewritten_at_once",
        "6",
        "a host buffer is filled for the next tile before the program of this one has read it",
        replies,
        Plant(rounds, "padded", one_ahead),
    ),
    planted(
        "stop_after_the_window",
        "7",
        "a stop string is looked for once a round, not once a token",
        fake_replies,
        Plant(conclude, "_accept", accept_then_stop),
    ),
    planted(
        "draft_emitted_unseen",
        "7",
        "a draft is emitted though another token was drawn in its place",
        fake_replies,
        Plant(conclude, "_accept", accept_unseen),
    ),
    planted(
        "penalties_count_drafts",
        "7",
        "penalties count drafts that are rejected",
        fake_replies,
        Plant(DrawArrays, "_penalty_arrays", penalties_with_drafts),
    ),
    planted(
        "draws_to_the_wrong_lanes",
        "4",
        "a round's draws are dealt to its lanes in another order",
        fake_replies,
        Plant(conclude, "_answers", answers_reversed),
    ),
    planted(
        "page_given_twice",
        "4",
        "a page is given to a lane while another holds it",
        fake_replies,
        Plant(PagePool, "alloc", pages_shared),
    ),
)
