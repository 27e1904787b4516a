"""Every op that is a function of rows keeps the row rule; a twin that looks at its neighbours is caught."""

import pytest

from tests.sweep.compare import all_cases
from tests.sweep.controls import CONTROLS
from tests.sweep.row_property import broken


@pytest.mark.parametrize("name", all_cases())
def test_a_row_is_its_own(name):
    assert broken(all_cases()[name]) == []


def test_a_twin_that_scales_by_the_tiles_maximum_is_caught():
    assert broken(CONTROLS["shared_maximum"]) == ["company", "padding"]


def test_a_twin_that_keys_noise_by_the_place_in_the_tile_is_caught():
    assert broken(CONTROLS["placed_noise"]) == ["place"]
