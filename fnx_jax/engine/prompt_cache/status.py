"""Host side: numbers about kept states, for metrics and replies. Read next: reuse.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DiskStatus:
    """kept: states in files, or on their way; nbytes: of these files. written: files written so far; read: files read.

    lost: states that could not be written or read, or came faster than the disk took them.
    """

    kept: int = 0
    nbytes: int = 0
    written: int = 0
    read: int = 0
    lost: int = 0


@dataclass(frozen=True)
class CacheStatus:
    """slots: states there is room for; 0 where nothing is kept. kept: those there are.

    queries: prompt tokens looked up; hits: those that were not run again. resumed: prompts that began behind row 0.
    saved, evicted: states kept so far, and let go for want of room. failed: saves and restores that went wrong.
    away, away_bytes: states in the host's memory; returned: those that came back from there.
    disk: those in files, None where there is no place for files.
    """

    slots: int = 0
    kept: int = 0
    queries: int = 0
    hits: int = 0
    resumed: int = 0
    saved: int = 0
    evicted: int = 0
    failed: int = 0
    away: int = 0
    away_bytes: int = 0
    returned: int = 0
    disk: DiskStatus | None = None
