"""Host side: what a process needs before its backend starts, to run the controls."""

import jax

DEVICES = 4
"""Devices that the controls of sums across ranks take; a CPU's cores stand for them."""


def prepare(compilation_cache_dir: str) -> None:
    """Asks for the devices, and keeps compiled programs in a folder: a twin leaves most of them as they were.

    Raises: RuntimeError where a backend is up already.
    """
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", compilation_cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
