"""Pairs that are scored when asked for, against tables of all of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.criterion.many_classes import on_demand as module
from gradmix.criterion.many_classes.on_demand import (
    Clusters,
    Linearised,
    PairsOnDemand,
    class_vectors,
    k_means,
)
from gradmix.criterion.many_classes.sketch import make_sketch
from gradmix.criterion.selector import pair_tables

RATIOS = [0.25, 0.6]


def on_demand(case, **sizes):
    X, _, y = case.exemplars
    sketch = make_sketch(
        X.float(),
        y,
        type(case.linear_head)(*(None if p is None else p.float() for p in case.linear_head)),
        case.weights.float(),
        **sizes,
    )
    return PairsOnDemand(sketch, RATIOS)


@given(data=st.data(), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_few_classes_have_the_pairs_of_full_tables(cases, data, seed):
    """Five classes are all on the shortlist, and a sample of all outputs is exact."""
    case = data.draw(cases)
    pairs = on_demand(case)
    bias = case.head.bias is not None
    tables = pair_tables(case.exemplars, case.memory, RATIOS, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    classes = tables.classes
    own, other = torch.randint(len(classes), (2, 3, 8), generator=generator)
    which = torch.tensor([[1], [0], [1]])
    harmful = pairs.harmful(which, classes[own], classes[other])
    best = pairs.best(which, classes[own], harmful)
    for step, at in enumerate(which.flatten()):
        scores = tables.scores[at]
        close = 1e-4 * scores.abs().max().clamp(min=1.0)
        for k in range(8):
            score = scores[own[step, k], other[step, k]]
            assert harmful[step, k] == (score < 0) or abs(score) < close
            if harmful[step, k]:
                found = scores[own[step, k], torch.searchsorted(classes, best[step, k])]
                assert found >= scores[own[step, k]].max() - close
            else:
                assert best[step, k] == classes[own[step, k]]


def test_of_many_classes_the_best_found_is_nearly_the_best(make_case):
    case = make_case([2] * 400, 16, 0, 0.7, 0.3, True, 0)
    pairs = on_demand(case, tail=1000)
    table, _ = pair_tables(case.exemplars, case.memory, RATIOS).tables
    rows = torch.arange(0, 400, 7)
    best = pairs.best(torch.zeros_like(rows), rows, torch.ones_like(rows, dtype=torch.bool))
    scores = table.scores[rows]
    regret = scores.amax(1) - scores.gather(1, best[:, None]).squeeze(1)
    assert (regret / scores.std(1)).mean() < 0.01
    assert (best == table.optimal[rows]).double().mean() > 0.9


def test_a_state_goes_on_to_the_same_answers(make_case):
    case = make_case([2] * 50, 6, 0, 3.0, 0.3, True, 1)
    pairs = on_demand(case, top=4, tail=8, generator=torch.Generator().manual_seed(0))
    own, other = torch.randint(50, (2, 30), generator=torch.Generator().manual_seed(0))
    table = torch.arange(30) % 2
    wanted = torch.ones_like(own, dtype=torch.bool)
    pairs.harmful(table, own, other)
    pairs.best(table[:10], own[:10], wanted[:10])
    again = PairsOnDemand.from_state_dict(pairs.state_dict())
    assert again.negative_rate == pairs.negative_rate
    assert torch.equal(pairs.best(table, own, wanted), again.best(table, own, wanted))
    assert torch.equal(pairs.harmful(table, own, other), again.harmful(table, own, other))


def test_each_pair_is_scored_once_and_the_rate_is_of_those_met(monkeypatch, make_case):
    case = make_case([2] * 6, 4, 0, 1.0, 0.3, True, 2)
    pairs = on_demand(case)
    asked = []
    score = pairs.score
    monkeypatch.setattr(pairs, "score", lambda *args: asked.append(len(args[0])) or score(*args))
    own, other, table = torch.tensor([[0, 0, 0, 1], [1, 1, 2, 0], [0, 0, 0, 1]])
    found = pairs.harmful(table, own, other)
    assert asked == [3]
    assert found[0] == found[1]
    assert pairs.negative_rate == pytest.approx(float(found[1:].double().mean()))


def test_class_vectors_of_a_whole_sample_are_the_mean_gradients(make_case):
    case = make_case([3, 2, 4], 5, 2, 1.0, 0.3, True, 4)
    X, z, y = case.exemplars
    sketch = make_sketch(X, y, case.linear_head, case.weights, top=2, tail=100)
    found_X, h, v, u = class_vectors(sketch)
    delta = z.softmax(1) - torch.nn.functional.one_hot(y, 5)
    gradient, bias = sketch.rows[:, 1], sketch.biases[:, 1]
    s = X @ gradient.T + bias
    for place, label in enumerate(y.unique()):
        mine = y == label
        torch.testing.assert_close(found_X[place], X[mine].mean(0))
        torch.testing.assert_close(h[place], (delta @ gradient)[mine].mean(0))
        torch.testing.assert_close(v[place], (delta @ bias)[mine].mean())
        torch.testing.assert_close(u[place], (delta * s).sum(1)[mine].mean())


def sketch_of(case):
    X, _, y = case.exemplars
    return make_sketch(X, y, case.linear_head, case.weights, top=8, tail=1000)


@given(data=st.data(), lam=st.floats(0.05, 0.95))
@settings(max_examples=30, deadline=None)
def test_products_are_the_linearised_criterion_but_for_what_is_of_the_first_class(cases, data, lam):
    case = data.draw(cases)
    sketch = sketch_of(case)
    X, h, v, u = class_vectors(sketch)
    linear = Linearised(sketch)
    queries = linear.queries(torch.arange(len(linear.keys)), lam)
    found = (1 - lam) * queries @ linear.keys.T
    mixed = lam * (1 - lam) * (h @ X.T + X @ h.T + v[:, None] + v)
    whole = lam**2 * u[:, None] + mixed + (1 - lam) ** 2 * u
    of_first = lam**2 * u + lam * (1 - lam) * v
    torch.testing.assert_close(found, whole - of_first[:, None])


def test_candidates_are_the_best_by_the_linearised_criterion(make_case):
    """If every cluster looks at all classes."""
    sketch = sketch_of(make_case([2] * 60, 8, 0, 0.7, 0.3, True, 3))
    found = Clusters(sketch, 5, wide=60)
    own, lam = torch.arange(60).repeat(2), torch.tensor(RATIOS).repeat_interleave(60)
    linear = Linearised(sketch)
    products = linear.queries(own, lam) @ linear.keys.T
    best = products.topk(5, dim=1).values
    torch.testing.assert_close(products.gather(1, found.candidates(own, lam)), best)


def test_a_search_that_does_not_look_at_all_misses_little(make_case):
    sketch = sketch_of(make_case([2] * 400, 16, 0, 0.7, 0.3, True, 0))
    made = Clusters(sketch, wide=64)
    linear, own = Linearised(sketch), torch.arange(400)
    lam = torch.full((400,), 0.4)
    found = made.candidates(own, lam)
    assert found.shape == (400, module.SHORTLIST)
    products = linear.queries(own, lam) @ linear.keys.T
    lost = products.amax(1) - products.gather(1, found).amax(1)
    assert (lost / products.std(1)).mean() < 0.05


def test_k_means_finds_groups():
    middle = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    around = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    cluster = k_means((middle[:, None] + around).flatten(0, 1), 3)
    assert cluster.view(3, 3).eq(cluster.view(3, 3)[:, :1]).all()
    assert len(cluster.unique()) == 3
