"""Traced: the network over one whole sequence, without caches and tiles, for jit, vmap and grad.

Bits are promised by the row programs (forward.py beside this package); these functions compute the same formulas in
whatever order the compiler likes. Read next: functions.py (the bundle), network.py (top to bottom).
"""

from fnx_jax.families.flash_next.sequence.functions import Functions, functions

__all__ = ["Functions", "functions"]
