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
from jax._src import xla_bridge

from pallas_kernels.row_tiles import ROW_TILE

# individual_dot: a reduction never swallows its producers. AVX: no fused multiply-add, so a product is always rounded.
CPU_FLAGS = ("--xla_cpu_experimental_ynn_fusion_type=individual_dot", "--xla_cpu_max_isa=AVX")
# GEMMs left to XLA are neither split by measurement nor summed by atomics.
GPU_FLAGS = ("--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0")


class BackendError(RuntimeError):
    """A backend was started before the flags were set, so its bits promise nothing."""


def flags_missing(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the required flags that `environment["XLA_FLAGS"]` does not hold."""
    present = environment.get("XLA_FLAGS", "").split()
    return tuple(flag for flag in CPU_FLAGS + GPU_FLAGS if flag not in present)


def configure() -> None:
    """Adds the flags to XLA_FLAGS where no backend is up yet; otherwise changes nothing (see `require`)."""
    missing = flags_missing(os.environ)
    if missing and not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *missing]).strip()


def require() -> None:
    """Raises BackendError where a backend may have started without the flags."""
    missing = flags_missing(os.environ)
    if missing:
        raise BackendError(
            f"a JAX backend was started without {' '.join(missing)}: import fnx_jax before the first use of jax"
        )


@dataclass(frozen=True)
class Fingerprint:
    """Everything besides checkpoint, prompt, parameters and seed that bits may depend on."""

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
    device = jax.devices()[0]
    flags = CPU_FLAGS if device.platform == "cpu" else GPU_FLAGS
    return Fingerprint(
        device=device.device_kind,
        jax=jax.__version__,
        jaxlib=jaxlib.version.__version__,
        flags=flags,
        row_tile=ROW_TILE,
        arithmetic=arithmetic,
    )
