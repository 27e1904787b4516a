"""Host side: the constants of the draft policy, in one place."""

from dataclasses import dataclass

WINDOW_ROWS = 16
"""Rows of a window at most: the pending token and 15 drafts."""


@dataclass(frozen=True)
class DraftSettings:
    """What the policy is told; all else it measures.

    depth_most: drafts of a chain at most; 0 to 15. confidence: the running product of chances at which a chain ends.
    prior: chance that draft j lands where those before it did, before anything is known; the last one holds on.
    prior_rounds: how many trials that prior weighs. server_rate, depth_rate: weight of the newest trial in what is
    known of the server and of one lane. lane_trust: trials of a lane that weigh as much as all the server knows.
    cost_rate: weight of the newest time of a round.
    plain_guard: whether depth 0 competes. plain_margin: how many times the tokens per millisecond of plain rounds a
    drafted one must promise. plain_wait_first, plain_wait_most: plain rounds between two probes, doubled by each that
    fails. probe_every: drafted rounds between two that go one deeper.
    rate_guard: whether drafted rounds must also have been as much faster over the last `rate_rounds` of them, which is
    judged from `rate_trial` on, less what luck may do to so few, `rate_luck` over the root of their number: for experts
    that are not resident, where a round's cost is not a matter of rows alone.
    loss_rounds, loss_share, gain_rounds: what drafts may lose (see ledger.py): plain rounds at first, a share of all
    time, and how many plain rounds of their gains besides. hope: how much more luck than so far, in spreads, drafts are
    granted that are tried on that account.
    draft_slack: drafts a lane may offer beyond its share where the head steps are taken anyway.
    copy_entry: matching tokens that begin a copy. copy_least, copy_first: tokens of one at least, and of the first.
    copy_chance, copy_trust: the chance that a copied token lands, before anything is known, and the trials it weighs.
    """

    depth_most: int = WINDOW_ROWS - 1
    confidence: float = 0.1
    prior: tuple[float, ...] = (0.82, 0.76, 0.72, 0.68, 0.65)
    prior_rounds: float = 4.0
    server_rate: float = 0.02
    depth_rate: float = 0.08
    lane_trust: float = 8.0
    cost_rate: float = 0.05
    plain_guard: bool = True
    plain_margin: float = 1.05
    plain_wait_first: int = 8
    plain_wait_most: int = 128
    probe_every: int = 8
    rate_guard: bool = False
    rate_rounds: int = 32
    rate_trial: int = 6
    rate_luck: float = 0.3
    loss_rounds: float = 2.0
    loss_share: float = 0.005
    gain_rounds: float = 8.0
    hope: float = 1.0
    draft_slack: int = 2
    copy_entry: int = 8
    copy_least: int = 2
    copy_first: int = 7
    copy_chance: float = 0.94
    copy_trust: float = 1.0

    def __post_init__(self):
        if not 0 <= self.depth_most < WINDOW_ROWS:
            raise ValueError(f"depth_most={self.depth_most}, must be from 0 to {WINDOW_ROWS - 1}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence={self.confidence}, must be from 0 to 1")
        if self.plain_margin < 1:
            raise ValueError(f"plain_margin={self.plain_margin}, must be 1 or more")
        if not 1 <= self.plain_wait_first <= self.plain_wait_most:
            raise ValueError(f"plain_wait_first={self.plain_wait_first}, must be from 1 to {self.plain_wait_most}")
        if not 0 <= self.loss_rounds <= self.gain_rounds:
            raise ValueError(f"loss_rounds={self.loss_rounds}, must be from 0 to {self.gain_rounds}")
        if not 0 <= self.loss_share < 1:
            raise ValueError(f"loss_share={self.loss_share}, must be from 0 to below 1")
        if not 1 <= self.copy_least <= self.copy_first < WINDOW_ROWS:
            raise ValueError(f"copy_first={self.copy_first}, must be from {self.copy_least} to {WINDOW_ROWS - 1}")
        if not 1 <= self.rate_trial <= self.rate_rounds:
            raise ValueError(f"rate_trial={self.rate_trial}, must be from 1 to {self.rate_rounds}")

    def prior_step(self, draft: int) -> float:
        """What is expected of the draft with this number, counted from 0, beside the one before it."""
        last = len(self.prior) - 1
        return self.prior[draft] / (self.prior[draft - 1] if draft else 1.0) if draft <= last else 1.0
