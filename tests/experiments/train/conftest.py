"""Training promises no bits across programs, so the folder's programs are compiled in a hurry."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def hurried():
    """Compiles without most optimisations; operations that other folders' tests run too must not run inside."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
