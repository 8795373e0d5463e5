"""Which samples the rows of a rank need."""

import pytest
import torch

from gradmix.mixing.plan import Draws, Plan
from gradmix.ranks import Ranks
from gradmix.types import Partners

INDEX = torch.tensor([[10, 11, 12, 13, 14, 15, 16]])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_ranks_need_disjoint_parts_of_an_unmixed_batch(size):
    plan = Plan(INDEX * 0, INDEX)
    parts = [plan.needed(0, Ranks(rank, size).rows(7)).tolist() for rank in range(size)]
    assert [row for part in parts for row in part] == INDEX[0].tolist()


def test_a_rank_needs_the_partners_of_its_rows():
    rows = torch.tensor([[6, 5, 4, 3, 2, 1, 0]])
    replaced = torch.tensor([[True, False, False, False, False, False, True]])
    partners = Partners(rows, replaced, torch.full((1, 7), 99))
    plan = Plan(INDEX * 0, INDEX, Draws([0.5], [0], [None], partners))
    assert plan.needed(0, slice(0, 2)).tolist() == [10, 11, 16, 15, 99]
    assert plan.needed(0, slice(2, 4)).tolist() == [12, 13, 14, 13]
    plain = Plan(INDEX * 0, INDEX, Draws([0.5], [0], [None], Partners(rows)))
    assert plain.needed(0, slice(0, 2)).tolist() == [10, 11, 16, 15]
