"""Host side: experts that another process holds: arrays of the right shape and dtype that take no memory, from headers.

Which pools there are follows from all experts of a layer, so a process must know the kind of those it never reads.
"""

from typing import Any

import jax
import numpy as np

from checkpoints import exl3
from checkpoints.headers import DTYPES
from checkpoints.naming import expert_info
from checkpoints.store import Store
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight


def exl3_outline(store: Store, prefix: str, decoded: type[np.floating] | None) -> Exl3Weight | DecodedWeight:
    """An EXL3 layer as it would be read. decoded: the dtype it would be decoded to at load, None for as stored."""
    info = exl3.linear_info(store, prefix)
    scales: dict[str, Any] = dict(
        suh=blank((info.in_features,), np.float16),
        svh=blank((info.out_features,), np.float16),
        bias=blank((info.out_features,), np.float16) if info.has_bias else None,
    )
    if decoded is not None:
        return DecodedWeight(wq=blank((info.out_features, info.in_features), decoded), **scales)
    rows, columns, words = info.trellis_shape
    return Exl3Weight(words=blank((rows, columns, words // 2), np.uint32), codebook=info.codebook, **scales)


def plain_outline(store: Store, layer_prefix: str, expert: int, projection: str, exact: bool) -> np.ndarray:
    """A plain expert as `read_expert` returns it. exact: as float32."""
    info, shape = expert_info(store, layer_prefix, expert, projection)
    return blank(shape, np.float32 if exact else DTYPES[info.dtype])


def outline_of(tree: Any) -> Any:
    """The same shapes and dtypes without the values."""
    return jax.tree.map(lambda leaf: blank(leaf.shape, leaf.dtype), tree)


def blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that share one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)
