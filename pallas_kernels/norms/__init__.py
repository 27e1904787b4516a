"""Root mean square norms."""

from pallas_kernels.norms.op import centred_rms, l2_normalise, plain_rms

__all__ = ["centred_rms", "l2_normalise", "plain_rms"]
