"""Rules that choose exemplars: herding and k-means."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.memory.selection import class_priorities, herding_ranks, kmeans_ranks


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


# --- k-means --------------------------------------------------------------------------------------

GROUPS = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_k_means_takes_the_middle_of_each_group_and_the_largest_group_first():
    """Three groups of 3, 5 and 4 points around a point in their middle."""
    around = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    x = torch.cat([GROUPS[0] + around[:3], GROUPS[1] + around, GROUPS[2] + around[[0, 1, 2, 3]]])
    for seed in range(5):
        ranks = kmeans_ranks(x, 3, seeded(seed))
        assert ranks.dtype == torch.float64
        chosen = (ranks < 3).nonzero().squeeze(1).tolist()
        assert chosen == [0, 3, 8]
        assert ranks[chosen].tolist() == [2, 0, 1]
        assert (ranks == len(x)).sum() == len(x) - 3


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 10**6))
def test_k_means_chooses_as_many_different_samples_as_it_can(count, most, seed):
    x = features(count, 3, seed).round()  # some samples are equal
    ranks = kmeans_ranks(x, most, seeded(seed))
    number = min(count, most)
    assert sorted(ranks.tolist())[:number] == list(range(number))
    assert torch.equal(kmeans_ranks(x, most, seeded(seed)), ranks)


def test_k_means_represents_a_class_better_than_chance():
    """The mean distance of a sample to its nearest exemplar."""
    x = features(200, 4, 1)
    chosen = x[kmeans_ranks(x, 12, seeded()) < 12]
    ours = float(torch.cdist(x, chosen).amin(1).mean())
    random = [
        float(torch.cdist(x, x[torch.randperm(200, generator=seeded(k))[:12]]).amin(1).mean())
        for k in range(50)
    ]
    assert ours < min(random)


def test_priorities_are_ranks_as_shares_of_each_class():
    labels = torch.tensor([2, 0, 2, 0, 2, 2])
    x = features(6, 3, 0)
    quota = torch.tensor([1, 0, 2])
    for rule in ("herding", "kmeans"):
        priority = class_priorities(rule, x, labels, quota, seeded())
        assert sorted(priority[labels == 0].tolist()) == [0.25, 1.25]
        assert sorted(priority[labels == 2].tolist()) == [0.125, 0.375, 1.125, 1.125]
    herded = herding_ranks(x[labels == 2], 2)
    assert class_priorities("herding", x, labels, quota, seeded())[labels == 2].tolist() == [
        (rank + 0.5) / 4 for rank in herded.tolist()
    ]
