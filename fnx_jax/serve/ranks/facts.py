"""Host side: what must be the same on every rank before they may run as one."""

import hashlib
import os
from importlib.metadata import version

from checkpoints import open_store
from fnx_jax import backend
from fnx_jax.serve.load import ModelSettings
from pallas_kernels.row_tiles import ROW_TILE

_FILES = ("config.json", "tokenizer.json", "generation_config.json")


def facts(settings: ModelSettings) -> dict[str, str]:
    """Names and values, in the order in which they are compared. Starts no backend. Raises CheckpointError."""
    import jax
    import jaxlib

    from fnx_jax.loading import PAGE

    store = open_store(settings.folder)
    try:
        digest = store.digest()
    finally:
        store.close()
    return {
        "fnx_jax": version("fnx_jax"),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "flags": " ".join(backend.CPU_FLAGS + backend.GPU_FLAGS + backend.flags_besides(os.environ)),
        "row_tile": str(ROW_TILE),
        "checkpoint_digest": digest,
        **{name: _file_digest(settings, name) for name in _FILES},
        "dtype": settings.dtype or "served",
        "lanes": str(settings.lanes),
        "context": "default" if settings.context is None else str(settings.context),
        "max_rows": str(settings.max_rows),
        "page": str(PAGE),
        "draft_head": str(settings.draft_head),
        "self_test": str(settings.self_test),
    }


def _file_digest(settings: ModelSettings, name: str) -> str:
    path = settings.folder / name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "missing"
