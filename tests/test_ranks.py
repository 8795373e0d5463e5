"""Ranks: rows, shares, and a process alone. The exchanges are tested in training/."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.ranks import ALONE, Ranks

sizes = st.integers(1, 20)


@given(count=st.integers(1, 1000), size=sizes)
def test_every_row_belongs_to_one_rank_in_order(count, size):
    ranks = [Ranks(rank, size) for rank in range(size)]
    rows = [row for one in ranks for row in range(count)[one.rows(count)]]
    assert rows == list(range(count))
    assert sum(one.share(count) for one in ranks) == pytest.approx(1)


@given(count=st.integers(0, 1000), size=sizes)
def test_ranks_differ_by_at_most_one_row(count, size):
    lengths = [len(range(count)[Ranks(rank, size).rows(count)]) for rank in range(size)]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= -(-count // size)  # what `gather` pads to


@given(count=st.integers(1, 1000), size=sizes)
def test_equal_rows_begin_with_the_own_rows_and_are_equally_many(count, size):
    for ranks in (Ranks(rank, size) for rank in range(size)):
        own, equal = (range(count)[rows] for rows in (ranks.rows(count), ranks.equal_rows(count)))
        assert equal[: len(own)] == own
        assert len(equal) == -(-count // size)


def test_alone_nothing_is_exchanged():
    part = torch.arange(4.0)
    ALONE.all_sum([part])
    assert part.tolist() == [0, 1, 2, 3]
    assert ALONE.gather(part, 4) is part
    assert ALONE.from_first(7) == 7
    assert ALONE.all_equal(3)
    assert ALONE.all_true(True)
    assert not ALONE.all_true(False)
    assert ALONE.first
