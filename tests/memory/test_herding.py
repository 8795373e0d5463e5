"""Herding: the greedy choice at every turn, and a mean that stays near."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.memory import herding_ranks


def features(count, size, seed):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) + 0.7


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def test_by_hand():
    """Of the directions 0°, 90° and 45° the last is the mean's; then the first of two equals."""
    x = torch.tensor([[3.0, 0.0], [0.0, 5.0], [2.0, 2.0]])
    assert herding_ranks(x, 3).tolist() == [1, 2, 0]


def test_the_second_makes_up_for_the_first():
    """Of 0°, 12°, −20° and 30° the mean lies near 5.5°; 0° is nearest, and 12° balances it."""
    angles = torch.tensor([0.0, 12.0, -20.0, 30.0]) * math.pi / 180
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert herding_ranks(x, 4).tolist()[:2] == [0, 1]


def test_the_rest_share_the_last_rank():
    ranks = herding_ranks(features(7, 3, 0), 3)
    assert sorted(ranks.tolist()) == [0, 1, 2, 7, 7, 7, 7]
    assert sorted(herding_ranks(features(4, 3, 0), 9).tolist()) == [0, 1, 2, 3]
    assert ranks.dtype == torch.float64


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(2, 6), st.integers(0, 10**6))
def test_every_turn_takes_the_best_by_brute_force(count, size, seed):
    x = features(count, size, seed)
    order = herding_ranks(x, count).argsort().tolist()
    assert sorted(order) == list(range(count))
    rows, mean = unit(x.double()), unit(x.double()).mean(dim=0)
    for turn, chosen in enumerate(order):
        before = order[:turn]
        distance = {
            i: float((rows[[*before, i]].mean(dim=0) - mean).norm())
            for i in range(count)
            if i not in before
        }
        assert distance[chosen] <= min(distance.values()) + 1e-5


def test_the_mean_of_the_chosen_is_nearer_than_that_of_random_ones():
    x = features(60, 5, 3)
    rows, mean = unit(x), unit(x).mean(dim=0)
    ranks = herding_ranks(x, 10)
    herded = float((rows[ranks < 10].mean(dim=0) - mean).norm())
    generator = torch.Generator().manual_seed(0)
    random = [
        float((rows[torch.randperm(60, generator=generator)[:10]].mean(dim=0) - mean).norm())
        for _ in range(200)
    ]
    assert herded < sorted(random)[10]  # than 95 of 100
