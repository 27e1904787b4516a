"""Sums over a vocabulary whose order does not depend on how it is split."""

from pallas_kernels.vocabulary_sums.op import block_sums as block_sums
from pallas_kernels.vocabulary_sums.op import join_sums as join_sums
