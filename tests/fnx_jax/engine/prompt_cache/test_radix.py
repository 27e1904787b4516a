"""The radix tree answers as a dict of whole sequences does, whatever is put in and taken out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnx_jax.engine.prompt_cache.radix import RadixTree, shared_length

SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


def array(tokens) -> np.ndarray:
    return np.array(tokens, np.int32)


def common(first, second) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SEQUENCES), max_size=40), st.lists(SEQUENCES, max_size=8))
def test_the_tree_is_a_dict_of_sequences(changes, asked):
    tree, naive = RadixTree(), {}
    for number, (adds, tokens) in enumerate(changes):
        if adds and tokens not in naive:
            tree.insert(array(tokens), number)
            naive[tokens] = number
        elif not adds and tokens in naive:
            assert tree.remove(array(tokens)) == naive.pop(tokens)
        else:
            with pytest.raises(KeyError):
                tree.insert(array(tokens), number) if adds else tree.remove(array(tokens))
        assert sorted(tree) == sorted(naive.values())
    for tokens in [*asked, *naive]:
        beginnings = [key for key in naive if key == tokens[: len(key)]]
        assert tree.longest(array(tokens)) == naive.get(max(beginnings, key=len, default=()))
        assert tree.get(array(tokens)) == naive.get(tokens)
        assert tree.shared(array(tokens)) == max((common(key, tokens) for key in naive), default=0)


def test_an_empty_sequence_is_never_stored():
    tree = RadixTree()
    with pytest.raises(KeyError):
        tree.insert(array(()), 1)
    with pytest.raises(KeyError):
        tree.remove(array(()))
    assert tree.longest(array(())) is None and tree.get(array(())) is None


def test_what_is_removed_leaves_no_nodes():
    tree = RadixTree()
    for tokens in ((1, 2, 3), (1, 2, 4, 5), (1, 2), (9,)):
        tree.insert(array(tokens), tokens)
    for tokens in ((1, 2), (1, 2, 3), (9,), (1, 2, 4, 5)):
        tree.remove(array(tokens))
    assert not tree._root.children


def test_shared_length_stops_at_the_first_difference_or_at_the_shorter_end():
    assert shared_length(array((1, 2, 3)), array((1, 5, 3))) == 1
    assert shared_length(array((1, 2)), array((1, 2, 3))) == 2
    assert shared_length(array(()), array((1,))) == 0
