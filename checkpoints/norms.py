"""Host side: holds norms against the convention that they are stored around zero. Read next: deep.py."""

import re
from collections import defaultdict

import numpy as np

from checkpoints.errors import CheckpointError
from checkpoints.naming import MTP_PREFIX
from checkpoints.store import Store

MEAN_LIMIT = 0.5
"""A family of norms whose weights are used as 1 + w has its mean below this; one that was shifted has it near 1."""

_CENTRED = re.compile(
    r"\.(hc_norm|q_norm|k_norm|q_layernorm|k_layernorm|norm_(?:key|query|conv)|pre_fc_norm_\w+)\.weight$"
)


def check_norms(store: Store) -> None:
    """Checks the mean of every family of norms: those of one kind, in the network and in its draft head.

    A single norm may lie anywhere: a last one, say, may have learnt to be loud.

    Raises: CheckpointError, naming the family's tensor that is farthest off, where the mean of a family is not below
      MEAN_LIMIT in size: a conversion added the 1 that the network adds itself.
    """
    means: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name in store.names():
        if (kind := _CENTRED.search(f".{name}")) and not name.startswith("model.visual."):
            part = MTP_PREFIX if name.startswith(MTP_PREFIX) else ""
            means[f"{part}*.{kind[1]}"].append((name, float(np.mean(store.read(name), dtype=np.float32))))
    for family, found in means.items():
        mean = sum(value for _, value in found) / len(found)
        if not abs(mean) < MEAN_LIMIT:
            worst, value = max(found, key=lambda item: abs(item[1]))
            raise CheckpointError(
                f"{store.info(worst).where}: mean {value:.3f}, and {mean:.3f} over {family}: these weights are used as "
                f"1 + w and lie around zero; a conversion seems to have added the 1"
            )
