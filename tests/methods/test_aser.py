"""ASER: exact Shapley values, the candidates that they choose, and when nothing is chosen."""

from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.criterion import embed
from gradmix.methods.aser import shapley_values
from gradmix.types import Samples


def literal_values(distances, matches, k):
    """The mean marginal contribution of each sample over all sets of the others, by definition."""
    number = len(distances)

    def worth(members):
        nearest = sorted(members, key=lambda i: distances[i])[:k]
        return sum(matches[i] for i in nearest) / k

    values = []
    for i in range(number):
        others = [j for j in range(number) if j != i]
        total = 0.0
        for size in range(number):
            gains = [worth((*s, i)) - worth(s) for s in combinations(others, size)]
            total += sum(gains) / comb(number - 1, size)
        values.append(total / number)
    return values


@given(
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40)
def test_the_values_are_shapley_values(matches, k, chance):
    distances = [float(d) for d in range(1, len(matches) + 1)]
    chance.shuffle(distances)
    ranked = Samples(torch.tensor(distances)[:, None], torch.tensor(matches).long())
    point = Samples(torch.zeros(1, 1), torch.ones(1, dtype=torch.int64))
    ours = shapley_values(ranked, point, k)
    expected = torch.tensor([literal_values(distances, matches, k)])
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


def test_values_by_hand():
    """One neighbour. At 0.4: s_3 = 1/3, s_2 = 1/3 − 1/2 · 1 = −1/6, s_1 = −1/6 + 1 = 5/6."""
    ranked = Samples(torch.tensor([[1.0], [0.0], [5.0]]), torch.tensor([3, 7, 7]))
    points = Samples(torch.tensor([[0.4], [0.9]]), torch.tensor([7, 2]))
    values = shapley_values(ranked, points, 1)
    torch.testing.assert_close(values, torch.tensor([[-1 / 6, 5 / 6, 1 / 3], [0.0, 0.0, 0.0]]))


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (16, 16)), noise=60)


@pytest.fixture
def in_second_task(benchmark, make_training):
    def call(network="mlp", exemplars=12, **given):
        run = make_training(
            "aser", network=network, benchmark=benchmark, exemplars=exemplars, **given
        )
        run.stop_in_task(1)
        return run.method

    return call


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_retrieves_the_candidates_with_the_greatest_difference(network, in_second_task):
    method = in_second_task(network, options={"neighbours": 2})
    halves, rivals = method.halves(), method.draw_rivals(12)
    method.halves, method.draw_rivals = lambda: halves, lambda _: rivals
    new, offset = torch.arange(3, 11), method.pool.num_new
    candidates, cooperative = (rows + offset for rows in halves)

    def embedded(index):
        x, y = method.pool.inputs(index), method.pool.y[index]
        return embed(method.model, method.head, x, y).embeddings, y

    ranked, labels = embedded(torch.cat([candidates, rivals]))
    differences = torch.zeros(len(candidates))
    for sign, index in ((1, cooperative), (-1, new)):
        for x, y in zip(*embedded(index), strict=True):
            values = shapley_values(Samples(ranked, labels), Samples(x[None], y[None]), 2)[0]
            differences += sign * values[: len(candidates)] / len(index)
    best = differences.argsort(descending=True)[:6]
    assert set(method.retrieve(new).tolist()) == set(candidates[best].tolist())


def test_without_new_samples_among_the_ranked_the_new_batch_would_have_no_say(in_second_task):
    method = in_second_task()
    candidates = method.halves()[0] + method.pool.num_new
    alone = method.values(method.embedded(candidates), torch.arange(8))
    assert not alone.any()
    beside = method.embedded(torch.cat([candidates, method.draw_rivals(len(candidates))]))
    assert bool(method.values(beside, torch.arange(8))[: len(candidates)].any())


@pytest.mark.parametrize(("exemplars", "candidates"), [(12, 6), (5, 3), (40, 6)])
def test_halves_are_disjoint_and_balanced(exemplars, candidates, in_second_task):
    """Two classes, B2 has 6 places: 2 · 6 / 2 = 6 candidates of each, at most half of a class."""
    method = in_second_task(exemplars=exemplars)
    held = min(exemplars, 16)
    ours, others = method.halves()
    assert method.memory.y[ours].bincount().tolist() == [candidates] * 2
    assert method.memory.y[others].bincount().tolist() == [min(candidates, held - candidates)] * 2
    assert not set(ours.tolist()) & set(others.tolist())


def test_too_few_candidates_mean_uniform_replay(in_second_task):
    method = in_second_task(exemplars=5)  # 6 candidates for 6 places
    method.draw_replay = lambda: torch.tensor([32])
    assert method.retrieve(torch.arange(8)).tolist() == [32]
