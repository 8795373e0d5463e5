"""Harmful pairs, once per epoch, from a model and a pool; lookups in pair tables."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradmix.criterion import PairSelector
from gradmix.criterion import selector as module
from gradmix.criterion.many_classes.on_demand import PairsOnDemand
from gradmix.criterion.selector import PairTables
from gradmix.data.pool import Normalise, Pool
from gradmix.errors import FileError, InputError
from gradmix.files.schema import validate
from gradmix.mixing.gradmix import GradMix
from gradmix.settings import CriterionSettings
from gradmix.training.state_schema import OnDemandState
from gradmix.types import Samples

OUTPUTS = 8
Y = torch.tensor([4, 6, 4] * 5 + [4, 4] + [1, 1, 1, 1, 2, 2])  # 12 of class 4, 5 of 6, then memory
NEW, SIZE = 17, 23
X = torch.eye(SIZE)


class RecordingPool(Pool):
    """A pool that notes which samples it was asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def inputs(self, index):
        self.asked.append(index.tolist())
        return super().inputs(index)


class FixedHost:
    """A generator of scalars that always returns the same ratio and notes what it was asked."""

    def __init__(self, lam=0.3):
        self.lam, self.asked = lam, []

    def beta(self, a, b):
        self.asked.append((a, b))
        return self.lam


def make_selector(tables=1, host=None, memory=True, y=Y, **settings):
    selector = PairSelector(
        CriterionSettings(**settings),
        tables=tables,
        ratio=(1.0, 1.0),
        host=FixedHost() if host is None else host,
        generator=torch.Generator().manual_seed(1),
    )
    old = Samples(X[NEW:], y[NEW:]) if memory else None
    pool = RecordingPool(Samples(X[:NEW], y[:NEW]), old, Normalise([0.0], [1.0]))
    selector.begin_task(pool, OUTPUTS)
    return selector


@pytest.fixture
def model(batch_norm_model):
    return batch_norm_model(SIZE, OUTPUTS)


def refreshed(model, **settings):
    selector = make_selector(**settings)
    selector.refresh(model, model[-1])
    return selector


def test_an_empty_memory_gives_no_pairs(model):
    selector = refreshed(model, memory=False)
    assert selector.pairs is None
    assert selector.negative_rate is None
    assert selector.tables == ()
    assert selector._pool.asked == []


def test_a_selector_without_tables_never_asks_the_model():
    selector = make_selector(tables=0)
    selector.refresh(nn.Identity(), None)  # it has no head and would be refused
    assert selector.pairs is None
    assert selector._host.asked == []


@pytest.mark.parametrize(
    ("criterion", "most", "kind"),
    [
        ("auto", 1000, PairTables),
        ("auto", 4, PairTables),  # there are 4 classes
        ("auto", 3, PairsOnDemand),
        ("exact", 3, PairTables),
        ("clusters", 1000, PairsOnDemand),
    ],
)
def test_auto_goes_by_the_number_of_classes(criterion, most, kind, model, monkeypatch):
    assert module.MOST_EXACT == 1000
    monkeypatch.setattr(module, "MOST_EXACT", most)
    assert type(refreshed(model, criterion=criterion).pairs) is kind


@pytest.mark.parametrize("average", ["sample", "class"])
def test_refresh_is_algorithm_1(model, average, reference_table):
    host = FixedHost(0.3)
    selector = refreshed(model, host=host, pairing="all-pairs", average=average)
    expected = reference_table(model, X, Y, NEW, 0.3, average)
    (table,) = selector.tables
    assert table.classes.tolist() == [1, 2, 4, 6]
    torch.testing.assert_close(table.scores, expected.scores)
    assert torch.equal(table.negative, expected.negative)
    assert torch.equal(table.optimal, expected.optimal)
    assert selector.negative_rate == expected.negative_rate
    assert host.asked == [(1.0, 1.0)]


@pytest.mark.parametrize("average", ["sample", "class"])
@pytest.mark.parametrize("criterion", ["exact", "clusters"])
def test_the_gradient_of_all_classes_includes_the_current_ones(
    model, average, criterion, reference_table
):
    settings = {"pairing": "all-pairs", "average": average, "criterion": criterion}
    selector = refreshed(model, gradient="all", **settings)
    expected = reference_table(model, X, Y, NEW, 0.3, average, gradient="all")
    if criterion == "exact":
        torch.testing.assert_close(selector.tables[0].scores, expected.scores)
    harmful, best = decisions(selector)
    assert torch.equal(harmful.view(4, 4).bool(), expected.negative)
    assert torch.equal(best.view(4, 4)[:, 0], expected.classes[expected.optimal])
    memory_only = reference_table(model, X, Y, NEW, 0.3, average)
    assert not torch.allclose(expected.scores, memory_only.scores, rtol=0.1)


def test_several_tables_cover_the_ratios_evenly(model, reference_table):
    host = FixedHost()
    selector = refreshed(model, tables=4, host=host, pairing="all-pairs")
    for table, lam in zip(selector.tables, (0.125, 0.375, 0.625, 0.875), strict=True):
        expected = reference_table(model, X, Y, NEW, lam)
        torch.testing.assert_close(table.scores, expected.scores)
    assert host.asked == []


def test_refresh_leaves_the_model_and_the_global_generators_unchanged(model, global_state):
    model.train()
    model[1].eval()  # a user's frozen BatchNorm stays frozen
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    randomness = global_state()
    refreshed(model)
    assert global_state() == randomness
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("limit", "of_4", "of_6"), [(1, 1, 1), (5, 5, 5), (7, 7, 5), (99, 12, 5)])
def test_refresh_draws_a_few_new_samples_and_the_whole_memory(model, limit, of_4, of_6):
    selector = refreshed(model, criterion_exemplars=limit)
    (asked,) = selector._pool.asked
    assert len(set(asked)) == len(asked)
    assert sorted(k for k in asked if k >= NEW) == list(range(NEW, SIZE))
    labels = Y[torch.tensor(asked)]
    assert (int((labels == 4).sum()), int((labels == 6).sum())) == (of_4, of_6)


def test_every_refresh_draws_other_exemplars(model):
    selector = make_selector(criterion_exemplars=3)
    for _ in range(60):
        selector.refresh(model, model[-1])
    asked = selector._pool.asked
    assert {k for rows in asked for k in rows} == set(range(SIZE))
    assert asked[0] != asked[1]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"criterion_exemplars": 0}, "criterion_exemplars is 0"),
        ({"pairing": "one-to-on"}, "did you mean 'one-to-one'"),
        ({"average": "samples"}, "did you mean 'sample'"),
        ({"gradient": "memori"}, "did you mean 'memory'"),
        ({"criterion": "exakt"}, "did you mean 'exact'"),
    ],
)
def test_bad_settings_are_refused(settings, name):
    with pytest.raises(InputError, match=name):
        make_selector(**settings)
    with pytest.raises(InputError, match=name):
        GradMix(**settings)


def test_a_block_of_nothing_is_refused():
    with pytest.raises(InputError, match="criterion_block is 0"):
        make_selector(criterion_block=0)


def decisions(selector):
    """S⁻ and S* of every pair of classes, for every table."""
    classes = torch.tensor([1, 2, 4, 6])
    own, other = torch.cartesian_prod(classes, classes).unbind(1)
    which = torch.arange(selector.pairs.number)[:, None]
    own, other = (labels.repeat(len(which), 1) for labels in (own, other))
    everywhere = torch.ones_like(own, dtype=torch.bool)
    return torch.stack(
        [
            selector.pairs.harmful(which, own, other).long(),
            selector.pairs.best(which, own, everywhere),
        ]
    )


@pytest.mark.parametrize("criterion", ["exact", "clusters"])
def test_decisions_do_not_depend_on_the_block(model, criterion):
    whole, blocked = (
        refreshed(model, tables=8, criterion=criterion, criterion_block=block)
        for block in (None, 3)
    )
    assert torch.equal(decisions(whole), decisions(blocked))
    assert whole.negative_rate == blocked.negative_rate


def test_few_classes_have_the_same_decisions_with_and_without_full_tables(model):
    exact, searched = (
        refreshed(model, tables=8, criterion=criterion) for criterion in ("exact", "clusters")
    )
    assert isinstance(exact.pairs, PairTables)
    assert not isinstance(searched.pairs, PairTables)
    assert torch.equal(decisions(exact), decisions(searched))


# --- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["exact", "clusters"])
@pytest.mark.parametrize("tables", [1, 8])
def test_state_round_trip(model, criterion, tables, assert_same):
    selector = refreshed(model, tables=tables, criterion=criterion, host=np.random.default_rng(0))
    again = make_selector(tables=tables, criterion=criterion)
    again.load_state_dict(copy.deepcopy(selector.state_dict()))
    assert_same(again.state_dict(), selector.state_dict())
    assert torch.equal(decisions(again), decisions(selector))


def test_the_state_without_pairs_is_empty(model):
    selector = make_selector()
    assert selector.state_dict() == {}
    again = refreshed(model)
    again.load_state_dict({})
    assert again.pairs is None


@pytest.mark.parametrize("criterion", ["exact", "clusters"])
def test_pairs_of_other_classes_are_refused(model, criterion):
    state = refreshed(model, criterion=criterion).state_dict()
    other = make_selector(criterion=criterion, y=torch.where(Y == 6, 7, Y))
    with pytest.raises(InputError, match="other classes"):
        other.load_state_dict(state)
    assert other.pairs is None


@pytest.mark.parametrize("criterion", ["exact", "clusters"])
def test_another_number_of_tables_is_refused(model, criterion):
    state = refreshed(model, tables=8, criterion=criterion).state_dict()
    other = make_selector(tables=4, criterion=criterion)
    with pytest.raises(InputError, match="8 tables are saved, not 4"):
        other.load_state_dict(state)
    assert other.pairs is None


def test_an_unknown_search_is_refused(model):
    state = refreshed(model, criterion="clusters").state_dict()["on_demand"]
    validate(OnDemandState, state, "my.checkpoint")
    with pytest.raises(FileError, match="search"):
        validate(OnDemandState, {**state, "search": "neighbours"}, "my.checkpoint")


# --- pair tables: lookups of many batches at once against a plain loop ---


@st.composite
def lookups(draw):
    """Tables of a few classes with gaps between their labels, and batches of pairs of them."""
    classes = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=5)))
    tables, size = draw(st.integers(1, 4)), len(classes)
    batches, rows = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scores = torch.randint(-3, 4, (tables, size, size), generator=generator) / 2  # with ties and 0
    own, other = torch.randint(size, (2, batches, rows), generator=generator)
    which = torch.randint(tables, (batches, 1), generator=generator)
    return torch.tensor(classes), scores, which, own, other


@given(lookups())
def test_harmful_and_best_are_those_of_a_plain_loop(lookup):
    classes, scores, which, own, other = lookup
    tables = PairTables(classes, scores)
    harmful = tables.harmful(which, classes[own], classes[other])
    best = tables.best(which, classes[own], torch.ones_like(own, dtype=torch.bool))
    assert harmful.shape == best.shape == own.shape
    for batch in range(own.shape[0]):
        table = scores[which[batch, 0]].tolist()
        for row in range(own.shape[1]):
            a, b = int(own[batch, row]), int(other[batch, row])
            assert bool(harmful[batch, row]) == (table[a][b] < 0)
            first_best = table[a].index(max(table[a]))
            assert int(best[batch, row]) == int(classes[first_best])


@given(lookups())
def test_the_negative_rate_is_the_mean_of_all_tables(lookup):
    classes, scores, *_ = lookup
    expected = sum(score < 0 for score in scores.flatten().tolist()) / scores.numel()
    assert PairTables(classes, scores).negative_rate == pytest.approx(expected)


@given(lookups())
def test_a_state_gives_the_same_tables(lookup):
    classes, scores, which, own, other = lookup
    tables = PairTables(classes, scores)
    again = PairTables(**tables.state_dict())
    assert again.number == tables.number == len(scores)
    asked = which, classes[own], classes[other]
    assert torch.equal(again.harmful(*asked), tables.harmful(*asked))
