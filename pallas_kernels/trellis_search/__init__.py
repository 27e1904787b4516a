"""The encoder's half of the trellis: states of closed rings whose values lie close to given targets.

Read next: op.py (the one function that others import), reference.py (the definition, in plain NumPy).
"""

from pallas_kernels.trellis_search.op import search_rings
from pallas_kernels.trellis_search.ring import Ring

__all__ = ["Ring", "search_rings"]
