"""Serves Qwen3.8-Flash-Next with JAX. `load` is the door; BUILD.md holds the map."""

from fnx_jax import backend

backend.configure()
