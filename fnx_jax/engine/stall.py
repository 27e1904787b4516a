"""Host side: how many prompt rows a round may hold while replies are being decoded. Read next: plan.py."""

from fnx_jax.engine.limits import EngineConfig

KEEP = 0.7
"""Weight of what was known before, against the newest round."""


class RoundTimes:
    """Learns what a round without prompt rows costs, and what each prompt row adds, in seconds."""

    def __init__(self):
        self._round_s: float | None = None
        self._prompt_row_s: float | None = None

    def note(self, prompt_rows: int, seconds: float) -> None:
        """Takes the wall time of a round that decoded at least one reply."""
        if not prompt_rows:
            self._round_s = _mix(self._round_s, seconds)
        elif self._round_s is not None:
            self._prompt_row_s = _mix(self._prompt_row_s, max(0.0, seconds - self._round_s) / prompt_rows)

    def rows_within(self, seconds: float) -> float | None:
        """Returns the prompt rows that keep a round below `seconds`, negative where none do, None while unknown."""
        if self._round_s is None or self._prompt_row_s is None:
            return None
        if not self._prompt_row_s:
            return float("inf")
        return (seconds - self._round_s) / self._prompt_row_s


def prompt_rows_most(config: EngineConfig, times: RoundTimes, decoding: bool, row_tile: int) -> int:
    """Returns the prompt rows of the next round at most; one tile is always allowed, so that every prompt ends."""
    if not decoding:
        return config.prefill_chunk
    rows: float | None = None
    if config.max_prefill_stall_ms is not None:
        rows = times.rows_within(config.max_prefill_stall_ms / 1000)
    return int(min(config.prefill_chunk, max(row_tile, config.stall_rows if rows is None else rows)))


def _mix(known: float | None, newest: float) -> float:
    return newest if known is None else KEEP * known + (1 - KEEP) * newest
