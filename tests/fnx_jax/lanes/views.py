"""What of a lane counts: every leaf of the state that a later row may read, and nothing that it may not."""

import jax
import numpy as np

from fnx_jax.lanes.rounds import DeviceSteps
from tests.fnx_jax.cases import page_table


def lane_view(steps: DeviceSteps, lane: int, length: int, pages_LP: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The live part of every leaf of one lane that holds `length` rows. Raises KeyError for a leaf nobody described.

    A lane's draft head has seen one pair less than the lane has rows.
    """
    steps.settle()
    config = steps.device.config
    back = {"ring": config.delta_taps - 1, "ngram": (config.ngram_taps - 1) * config.ngram_size}
    pages = (page_table(steps) if pages_LP is None else pages_LP)[lane]

    def paged(leaf: np.ndarray, count: int) -> np.ndarray:
        units = np.arange(count)
        return leaf[pages[units // leaf.shape[1]], units % leaf.shape[1]]

    def ringed(leaf: np.ndarray, count: int) -> np.ndarray:
        return leaf[lane, np.arange(max(0, length - count), length) % leaf.shape[1]]

    readers = {
        "committed": lambda leaf, seen: leaf[lane],
        "ring": lambda leaf, seen: ringed(leaf, back["ring"]),
        "ngram": lambda leaf, seen: ringed(leaf, back["ngram"]),
        "key": paged,
        "value": paged,
        "raw": paged,
        "pooled": lambda leaf, seen: paged(leaf, seen // config.block),
        "folded": lambda leaf, seen: leaf[lane],
        "streams_LRN": lambda leaf, seen: ringed(leaf, 1),
    }
    view = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(steps.state)[0]:
        names = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        draft = "attention" in names and path[2].idx >= config.attention_layers
        seen = max(0, length - 1) if draft else length
        view[jax.tree_util.keystr(path)] = readers[names[-1]](np.asarray(leaf), seen)
    return view


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Every leaf equal, bit for bit."""
    assert found.keys() == wanted.keys()
    unequal = [name for name in wanted if bits(found[name]) != bits(wanted[name])]
    assert not unequal, f"leaves that differ: {unequal}"


def bits(value: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes: what two equal arrays share, signs of zeros included."""
    return value.shape, np.ascontiguousarray(value).tobytes()


def poison(steps: DeviceSteps) -> None:
    """Fills every float leaf of the state with NaN, as a previous user might have left it."""

    def spoil(leaf):
        if leaf.dtype == np.uint16:  # bits of bfloat16
            return jax.device_put(np.full(leaf.shape, 0x7FC1, np.uint16), leaf.sharding)
        if not np.issubdtype(leaf.dtype, np.integer):
            return jax.device_put(np.full(leaf.shape, np.nan, leaf.dtype), leaf.sharding)
        return leaf

    steps.state = jax.tree.map(spoil, steps.state)
