"""Host side: what can go wrong between ranks."""


class RankLost(RuntimeError):
    """Another rank is gone, silent, or says what it may not. What ran with it cannot go on."""


class Disagreement(ValueError):
    """Ranks were started with unlike settings, files or versions; the message names the first and both values."""


class Stranger(ValueError):
    """A connection that is no rank's: it speaks otherwise, or has another token."""
