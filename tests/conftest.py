"""Four CPU devices, strict dtypes, warnings as errors, one persistent compilation cache and shared models."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

import fnx_jax  # sets the backend flags before jax starts
from checkpoints.commands import DEMO

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
def exact_model() -> Callable[..., fnx_jax.Model]:
    """Loads a golden case in float32 arithmetic on a number of devices, once."""
    models: dict[tuple[str, int], fnx_jax.Model] = {}

    def get(name: str, devices: int = 1) -> fnx_jax.Model:
        if (name, devices) not in models:
            loaded = fnx_jax.load(GOLDEN / name, devices=devices, dtype="float32", lanes=4, context=256)
            models[name, devices] = loaded
        return models[name, devices]

    return get


@pytest.fixture(scope="session")
def demo_model() -> fnx_jax.Model:
    """The embedded demo as served."""
    return fnx_jax.load(DEMO, lanes=4, context=512)
