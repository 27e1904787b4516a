"""Host side: what was decided before the head drafts, for the windows that follow. Read next: policy.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fnx_jax.engine.drafting.allocate import Chain, Share
from fnx_jax.engine.drafting.streams import Window


@dataclass(frozen=True)
class Plan:
    """depths: drafts of the head by stream.

    least: by stream order, drafts to test whatever their chances are once they are made. probe: the stream that makes a
    single draft though plain rounds win, and the chance that it lands.
    """

    depths: tuple[int, ...]
    least: Mapping[int, int] = field(default_factory=dict)
    probe: tuple[int, float] | None = None


@dataclass(frozen=True)
class DraftCall:
    """What the newest draft call drafted for, and took. steps: of the longest chain."""

    lanes: int = 0
    steps: int = 0
    ms: float = 0.0


def no_drafts(streams: int) -> Plan:
    """The head makes none."""
    return Plan((0,) * streams)


def head_counts(share: Share, chains: Sequence[Chain]) -> tuple[int, ...]:
    """Drafts that the head makes, by chain."""
    return tuple(count if chain.head else 0 for count, chain in zip(share.counts, chains, strict=True))


def tested(best: Sequence[int], offers: Sequence[Window], least: Mapping[int, int], copy_least: int) -> list[int]:
    """Drafts to test, by offer, where `best` were the best ones."""
    counts = []
    for count, offer in zip(best, offers, strict=True):
        match offer.source:
            case "forced":
                counts.append(offer.tested)
            case "copy":
                counts.append(count if count >= copy_least else 0)
            case _:
                counts.append(max(count, min(least.get(offer.order, 0), len(offer.offered))))
    return counts
