"""The page pool: counts, sharing, and that it notices when someone forgets or repeats a release."""

import numpy as np
import pytest

from fnx_jax.engine.pages import PageError, PagePool, PageTable


def test_alloc_and_release_return_the_pool_to_where_it_was():
    pool = PagePool(5, 8)
    first, second = pool.alloc(2), pool.alloc(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (pool.free, pool.used) == (0, 5)
    pool.check([first, second])
    pool.release(first)
    pool.release(second)
    assert (pool.free, pool.used) == (5, 0)
    pool.check([])


def test_needed_rounds_up_to_whole_pages():
    pool = PagePool(4, 8)
    assert [pool.needed(n) for n in (0, 1, 8, 9, 32)] == [0, 1, 1, 2, 4]


def test_alloc_takes_nothing_where_it_cannot_take_all():
    pool = PagePool(3, 8)
    pool.alloc(2)
    with pytest.raises(PageError, match="2 pages wanted, 1 of 3"):
        pool.alloc(2)
    assert pool.free == 1


def test_shared_page_is_free_only_after_its_last_holder():
    pool = PagePool(2, 8)
    pages = pool.alloc(1)
    pool.share(pages)
    pool.release(pages)
    assert pool.used == 1
    pool.release(pages)
    assert pool.used == 0


@pytest.mark.parametrize("pages", [(0,), (7,), (-1,)])
def test_pages_without_a_holder_can_be_neither_shared_nor_released(pages):
    pool = PagePool(2, 8)
    for change in (pool.share, pool.release):
        with pytest.raises(PageError, match="not held"):
            change(pages)


def test_release_twice_in_one_call_changes_nothing():
    pool = PagePool(2, 8)
    (page,) = pool.alloc(1)
    with pytest.raises(PageError):
        pool.release((page, page))
    pool.check([(page,)])


@pytest.mark.parametrize("holders", [[], [(0,)], [(0, 1), (1,)], [(0, 1, 2)]])
def test_check_notices_references_that_nobody_explains(holders):
    pool = PagePool(3, 8)
    assert pool.alloc(2) == (0, 1)
    pool.check([(0, 1)])
    with pytest.raises(PageError):
        pool.check(holders)


def test_table_hands_out_copies():
    table = PageTable(2, 3)
    table.assign(1, (4, 5))
    seen_LP = table.copy()
    assert seen_LP.tolist() == [[-1, -1, -1], [4, 5, -1]] and seen_LP.dtype == np.int32
    table.assign(1, (6,))
    table.assign(0, (4,))
    assert seen_LP.tolist() == [[-1, -1, -1], [4, 5, -1]]
    table.clear(0)
    assert table.copy().tolist() == [[-1, -1, -1], [6, -1, -1]]
