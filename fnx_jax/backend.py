"""Host side: what the bits depend on outside the model. Backend flags, the row tile, the fingerprint.

XLA picks how an operation is computed from the program around it unless it is told not to; the flags below tell it.
They must be in place before a backend starts, so the package calls `configure` when it is imported.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import jax
import jaxlib
import numpy as np
from jax._src import xla_bridge

from pallas_kernels.row_tiles import ROW_TILE, heights_are_free

# individual_dot: a reduction never swallows its producers. AVX: no fused multiply-add, so a product is always rounded.
CPU_FLAGS = ("--xla_cpu_experimental_ynn_fusion_type=individual_dot", "--xla_cpu_max_isa=AVX")
# GEMMs left to XLA are neither split by measurement nor summed by atomics.
GPU_FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


TALL = 256
"""Rows of a tall block: enough for every expert to meet as many rows as its weights are worth reading for."""


class BackendError(RuntimeError):
    """A backend was started before the flags were set, or JAX is set to 64 bits: its bits promise nothing."""


def flags_missing(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the required flags that `environment["XLA_FLAGS"]` does not hold, or sets to something else later on."""
    # Of flags with one name the last counts.
    counting = {flag.split("=")[0]: flag for flag in environment.get("XLA_FLAGS", "").split()}
    return tuple(flag for flag in CPU_FLAGS + GPU_FLAGS if counting.get(flag.split("=")[0]) != flag)


def configure() -> None:
    """Adds the flags to XLA_FLAGS where no backend is up yet; otherwise changes nothing (see `require`).

    Raises: BackendError where XLA_FLAGS is the name of a file, to which nothing can be added.
    """
    present = os.environ.get("XLA_FLAGS", "").strip()
    if present and not present.startswith("-"):
        raise BackendError(f"XLA_FLAGS={present}: flags were wanted, a file of flags is not read")
    missing = flags_missing(os.environ)
    if missing and not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *missing]).strip()


def require() -> None:
    """Raises BackendError where a backend may have started without the flags, or default dtypes are of 64 bits."""
    missing = flags_missing(os.environ)
    if missing:
        raise BackendError(
            f"a JAX backend was started without {' '.join(missing)}: import fnx_jax before the first use of jax"
        )
    if jax.config.read("jax_enable_x64"):
        raise BackendError("jax_enable_x64 is set: the programs of serving are written for 32-bit defaults")


def require_in_force() -> None:
    """Raises BackendError where a CPU backend was made without the flags: XLA reads them once, for its first backend.

    Starts a backend.
    """
    if jax.default_backend() != "cpu":
        return
    x = np.linspace(1, 2, 64, dtype=np.float32)
    found = jax.jit(lambda x, y: x * x - y)(x, x * x)
    if np.asarray(found).any():  # what the product's rounding lost: it went into the difference unrounded
        raise BackendError("products and sums are fused, so XLA had read XLA_FLAGS before fnx_jax was imported")


def heights() -> tuple[int, ...]:
    """Rows that a row program takes: a tile, and where any height has a tile's bits a whole piece of a prompt."""
    return (ROW_TILE, TALL) if heights_are_free() else (ROW_TILE,)


def flags_besides(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the flags in `environment["XLA_FLAGS"]` that are not among the required ones, sorted."""
    return tuple(sorted(set(environment.get("XLA_FLAGS", "").split()).difference(CPU_FLAGS + GPU_FLAGS)))


@dataclass(frozen=True)
class Fingerprint:
    """Everything besides checkpoint, prompt, parameters and seed that bits may depend on.

    flags: the required ones of this platform, then whatever else XLA_FLAGS held.
    """

    device: str
    jax: str
    jaxlib: str
    flags: tuple[str, ...]
    row_tile: int
    arithmetic: str

    def digest(self) -> str:
        """Twelve hex digits of SHA-256 over the fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(arithmetic: str) -> Fingerprint:
    """Describes this process; `arithmetic` names the operand and cache dtypes. Starts a backend."""
    require()
    device = jax.local_devices()[0]
    flags = CPU_FLAGS if device.platform == "cpu" else GPU_FLAGS
    return Fingerprint(
        device=device.device_kind,
        jax=jax.__version__,
        jaxlib=jaxlib.version.__version__,
        flags=flags + flags_besides(os.environ),
        row_tile=ROW_TILE,
        arithmetic=arithmetic,
    )
