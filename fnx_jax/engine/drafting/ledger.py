"""Host side: an account of what drafts gained and lost beside plain rounds. Read next: policy.py."""

from fnx_jax.engine.drafting.settings import DraftSettings


class Ledger:
    """The account of one width, in milliseconds of plain rounds.

    A round with drafts is booked at what its tokens would have taken in plain rounds, less what it took. Drafts that
    may lose more than there is are not taken. The account opens with `loss_rounds` plain rounds, is paid `loss_share`
    of all time, and holds `gain_rounds` at most: so over any stretch of a run drafts lose no more than these and that
    share, as far as times are known, single probes at the longest wait apart.
    """

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._rounds = settings.loss_rounds

    def spare_ms(self, plain_ms: float) -> float:
        """What a round may lose beside a plain one, if none of its drafts land."""
        return max(0.0, self._rounds * plain_ms)

    def book(self, gain_ms: float, ms: float, plain_ms: float) -> None:
        """Takes a round. gain_ms: the time of as many tokens in plain rounds, less its own, `ms`."""
        rounds = (gain_ms + self._settings.loss_share * ms) / plain_ms
        self._rounds = min(self._settings.gain_rounds, self._rounds + rounds)
