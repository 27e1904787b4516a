"""The host tier keeps within its bytes, and the longest unused leave first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.host import HostTier


def away(seed: int, nbytes: int) -> Away:
    return Away(np.array([seed, 1, 2], np.int32), "prompt", (np.full(nbytes, seed, np.uint8),))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=30))
def test_the_newest_that_fit_are_there(added):
    tier, naive = HostTier(100), []
    for seed, nbytes in added:
        tier.add(away(seed, nbytes))
        naive = [(s, n) for s, n in naive if s != seed] + [(seed, nbytes)]
        while sum(n for _, n in naive) > 100:
            naive.pop(0)
        assert [(int(entry.held[0][0]), entry.nbytes) for entry in tier] == naive
        assert tier.used_bytes == sum(n for _, n in naive) and len(tier) == len(naive)
    for seed in range(10):
        found = tier.find(np.array([seed, 1, 2, 3], np.int32))
        assert (found is not None) == (seed in [s for s, _ in naive])
    for entry in list(tier):
        tier.drop(entry)
    assert not len(tier) and tier.used_bytes == 0


def test_what_is_larger_than_all_of_it_is_not_taken():
    assert not HostTier(100).takes(101) and HostTier(100).takes(100) and not HostTier(0).takes(1)
