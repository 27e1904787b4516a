"""Serves Qwen3.8-Flash-Next with JAX. `load` is the door; BUILD.md holds the map."""

from fnx_jax import backend

backend.configure()

from fnx_jax.model import Model, load  # noqa: E402  (the flags come before anything that uses jax)

__all__ = ["Model", "load"]
