"""The searches that are counted are those that the quantiser does."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints import quantize
from checkpoints.architecture import Linear
from checkpoints.converter.searches import Searches, count_searches
from checkpoints.converter.units import Unit, network_units
from checkpoints.converter.widths import recipe_widths
from checkpoints.full_size import full_config
from checkpoints.inventory import Inventory
from checkpoints.naming import PUBLISHED_PREFIX
from checkpoints.quantiser import ldlq, scale
from checkpoints.recipe import read_recipe


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 256), (384, 1024), (1024, 100)])
def test_a_linear_is_searched_as_often_as_counted(inputs, outputs, monkeypatch):
    searched = {"layers": 0, "scales": 0}

    def counting(what):
        def search(target_TP, *_):
            searched[what] += len(target_TP)
            return np.zeros(target_TP.shape, np.uint16), target_TP + 1

        return search

    monkeypatch.setattr(ldlq, "search", counting("layers"))
    monkeypatch.setattr(scale, "search", counting("scales"))
    weight = np.random.default_rng(0).standard_normal((inputs, outputs)).astype(np.float32)
    quantize.quantize_linear(weight, 3)
    unit = Unit("layer 0", (Linear("a.o_proj", (outputs, inputs)),), 0)
    counted = count_searches([unit], {"a.o_proj": 3}, 0, False)
    assert {found.what: found.rings for found in counted} == searched


def test_full_size_network_is_counted_whole():
    text, recipe = full_config()["text_config"], read_recipe("flash_next_4.05")
    units = network_units(Inventory(PUBLISHED_PREFIX, text, 1, {}, (), ()))
    widths = recipe_widths(units, recipe)
    alone, shared = (count_searches(units, widths, recipe.ngram_bits, choice) for choice in (False, True))
    experts = next(found for found in alone if found.what == "layers" and found.bits == 4)
    assert len(widths) == 75_751 - recipe.vision_linears
    assert experts.rings == 49 * 3 * 512 * 40 * 160 + 13 * 40 * 160  # the indexers' shape is that of an expert
    assert [found.rings for found in alone if found.what == "n-gram rows"] == [320_001_536]
    assert [found for found in shared if found.what != "scales"] == [found for found in alone if found.what != "scales"]
    assert sum(f.rings for f in shared if f.what == "scales") < sum(f.rings for f in alone if f.what == "scales") / 9
    assert not count_searches(units[:2], {}, 0, False)


def test_every_state_is_a_candidate_twice_at_every_position():
    kind = Searches("layers", 3, 256, 2.5)
    assert kind.candidates == 3 * 2 * 256 * 65536
    assert replace(kind, length=160).steps == 3 * 2 * 160
