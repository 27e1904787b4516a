"""Probability mass as integers, so that sums are exact and know no order."""

from pallas_kernels.fixed_point.op import MOST_MASSES as MOST_MASSES
from pallas_kernels.fixed_point.op import carried as carried
from pallas_kernels.fixed_point.op import fraction_limbs as fraction_limbs
from pallas_kernels.fixed_point.op import mass_before as mass_before
from pallas_kernels.fixed_point.op import mass_limbs as mass_limbs
from pallas_kernels.fixed_point.op import mass_sums as mass_sums
from pallas_kernels.fixed_point.op import within_fraction as within_fraction
