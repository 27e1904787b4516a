"""Names of axes: the letters that shapes are written with, and the mesh axis.

L lanes, T tokens, S cache positions, B rows of a flat batch, D hidden, N all streams side by side, V vocabulary, v a
rank's slice of it, H query or value heads, G KV heads, K head size, E experts, A active experts, F FFN size, I in
features, O out features, P pages or page table slots, C channels, R ranks.
"""

RANKS = "ranks"
"""The mesh axis over which heads, experts and the vocabulary are dealt."""
