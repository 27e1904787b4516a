"""Traced: the kinds of leaves that lanes have, for whoever copies one lane's state."""

from enum import Enum


class Leaf(Enum):
    """LANE: [L, ...], each lane its own. RING: [L, R, ...], a lane's newest rows at position % R.

    PAGES: [P, ...], pages that lanes hold and may share.
    """

    LANE = "lane"
    RING = "ring"
    PAGES = "pages"
