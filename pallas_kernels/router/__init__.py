"""Expert routing."""

from pallas_kernels.router.op import route

__all__ = ["route"]
