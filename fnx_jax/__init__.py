"""Serves Qwen3.8-Flash-Next with JAX. `load` is the door; BUILD.md holds the map."""

from typing import TYPE_CHECKING, Any

from fnx_jax import backend

if TYPE_CHECKING:
    from fnx_jax.loading import load
    from fnx_jax.model import Model

__all__ = ["Model", "load"]

backend.configure()


def __getattr__(name: str) -> Any:
    """`load` and `Model` come on first use, so that host-side parts import without the network."""
    if name == "Model":
        from fnx_jax.model import Model

        return Model
    if name == "load":
        from fnx_jax.loading import load

        return load
    raise AttributeError(f"module 'fnx_jax' has no attribute {name!r}")
