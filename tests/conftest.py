"""Four CPU devices, strict dtypes, warnings as errors, one persistent compilation cache and shared models."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

import fnx_jax  # sets the backend flags before jax starts

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden arrays."""
    return GOLDEN


@pytest.fixture(scope="session")
def exact_model() -> Callable[[str], fnx_jax.Model]:
    """Loads a golden case in float32 arithmetic, once."""
    models: dict[str, fnx_jax.Model] = {}

    def get(name: str) -> fnx_jax.Model:
        if name not in models:
            models[name] = fnx_jax.load(GOLDEN / name, dtype="float32", lanes=4, context=256)
        return models[name]

    return get
