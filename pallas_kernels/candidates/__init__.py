"""The largest entries of each row, exactly, ties to the lower id."""

from pallas_kernels.candidates.op import top_candidates as top_candidates
