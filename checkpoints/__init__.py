"""Host side: reads, checks and repacks weight files with NumPy alone. `open_store` is the door; read next: store.py."""

from checkpoints import exl3
from checkpoints.errors import CheckpointError
from checkpoints.headers import TensorInfo
from checkpoints.store import Store, open_store

__all__ = ["CheckpointError", "Store", "TensorInfo", "exl3", "open_store"]
