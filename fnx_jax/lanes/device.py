"""Host side: a model on its devices. Read next: rounds.py."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from fnx_jax.families import Family, Ngrams


@dataclass(frozen=True)
class Device:
    """A model on its devices: everything the programs take besides the lanes.

    params: as the row programs take them. shards: each rank's share. mesh: the devices.
    valid_V: ids that have a token, dealt as the logits are.
    """

    family: Family
    config: Any
    shards: Any
    mesh: Mesh
    params: Any
    ngrams: Ngrams
    valid_V: jax.Array
