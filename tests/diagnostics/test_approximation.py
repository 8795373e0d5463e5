"""Errors of the criterion's approximation, and of the pairs chosen by it."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.diagnostics import (
    approximation,
    approximation_error,
    class_pair_scores,
    pair_agreement,
)
from gradmix.diagnostics.approximation import ClassPairs, PairScores
from gradmix.errors import InputError, UnknownNameError

GRID = (0.0, 0.25, 0.5, 0.75, 1.0)


def made_up(approximated, true):
    """Scores (L, K, K) of K classes with one exemplar each."""
    approximated, true = torch.tensor(approximated), torch.tensor(true)
    number = approximated.shape[1]
    place = torch.arange(number)
    pairs = ClassPairs(
        place, place, place.repeat_interleave(number), place.repeat(number), torch.arange(number**2)
    )
    return PairScores(pairs, approximated.flatten(1), true.flatten(1))


@pytest.fixture
def fake(monkeypatch):
    def put(approximated, true):
        scores = made_up(approximated, true)
        monkeypatch.setattr(approximation, "class_pair_scores", lambda *_, **__: scores)

    return put


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["sequential", "residual"]), st.booleans(), st.integers(0, 2**31))
def test_the_error_is_zero_at_the_ends_and_the_root_mean_square_between(
    make, samples, kind, bias, seed
):
    model = make(kind, bias, seed)
    error = approximation_error(model, *samples(), lambdas=GRID)
    scores = class_pair_scores(model, *samples(), lambdas=GRID)
    for place in (0, -1):
        assert error.of_samples[place] == error.of_classes[place] == 0.0
    gap = (scores.approximated - scores.true).double()
    for ours, row in zip(error.of_samples, gap, strict=True):
        assert ours**2 == pytest.approx(sum(float(g) ** 2 for g in row) / len(row), rel=1e-5)
    by_class = (scores.by_class(scores.approximated) - scores.by_class(scores.true)).double()
    for ours, table in zip(error.of_classes, by_class, strict=True):
        assert ours**2 == pytest.approx(float((table**2).mean()), rel=1e-5)


def test_root_mean_squares_by_hand(fake):
    fake([[[1.0, 2.0], [3.0, 4.0]]], [[[1.0, 2.0], [3.0, 0.0]]])
    error = approximation_error(None, None, None, lambdas=[0.5])
    assert error.of_samples == error.of_classes == (2.0,)  # √(4² / 4)
    assert error.mean_of_samples == error.mean_of_classes == 1.0  # a triangle of height 2


def test_the_mean_is_the_area_under_the_curve_whatever_the_order(fake):
    zero, two, four = ([[gap, -gap], [gap, gap]] for gap in (0.0, 2.0, 4.0))
    fake([zero, four, two, zero], [zero, zero, zero, zero])
    error = approximation_error(None, None, None, lambdas=[1.0, 0.5, 0.25, 0.0])
    assert error.of_samples == (0.0, 4.0, 2.0, 0.0)
    assert error.mean_of_samples == pytest.approx(0.25 + 0.75 + 1.0)


@pytest.mark.parametrize("bias", [True, False])
def test_of_a_linear_model_nothing_is_approximated(bias, make, samples):
    """Theorem 2: the approximated gradient is the true one if the model is linear."""
    model = make("linear", bias)
    error = approximation_error(model, *samples())
    assert max(error.of_samples) < 1e-5
    assert pair_agreement(model, *samples(), lambdas=GRID[1:-1]) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("kind", ["sequential", "residual"])
def test_at_the_ends_all_agree(kind, make, samples):
    model = make(kind, dtype=torch.float32)
    agreement = pair_agreement(model, *samples(torch.float32), lambdas=[0.0, 1.0])
    assert agreement == (1.0, 1.0, 1.0, 1.0)


def test_agreement_by_hand(fake):
    """Rows: a true partner missed; one too many; all harmful, with S* the same; S* another."""
    fake(
        [
            [
                [2.0, -1.0, -1.0, -1.0],  # mixes 0
                [1.0, 3.0, -1.0, -1.0],  # mixes 0, 1
                [-4.0, -3.0, -2.0, -1.0],  # mixes 3, its best
                [-1.0, -2.0, -3.0, -4.0],  # mixes 0, its best
            ]
        ],
        [
            [
                [2.0, 1.0, -1.0, -1.0],  # should mix 0, 1
                [-1.0, 3.0, -1.0, -1.0],  # 1
                [-4.0, -3.0, -2.0, -1.0],  # 3, its best
                [-1.0, 2.0, 0.0, -4.0],  # 1, 2: a score of 0 does no harm
            ]
        ],
    )
    agreement = pair_agreement(None, None, None, lambdas=[0.5])
    assert agreement.precision == 3 / 5
    assert agreement.recall == 3 / 6
    assert agreement.optimal == 3 / 4
    assert agreement.negative == 12 / 16


def test_all_ratios_are_counted_together(fake):
    right, wrong = [[1.0, -1.0], [-1.0, 1.0]], [[-1.0, 1.0], [1.0, -1.0]]
    fake([right, [[1.0, 1.0], [1.0, 2.0]]], [right, wrong])
    agreement = pair_agreement(None, None, None, lambdas=[0.3, 0.6])
    assert agreement.precision == 4 / 6
    assert agreement.recall == 1.0


@pytest.fixture(scope="session")
def literal_agreement(samples):
    def literal_agreement(model, lambdas):
        """Precision and recall by sets of (λ, class, class)."""
        scores = class_pair_scores(model, *samples(), lambdas=lambdas)
        sets = []
        for kind in (scores.approximated, scores.true):
            mixed = set()
            for lam, table in zip(lambdas, scores.by_class(kind).tolist(), strict=True):
                for a, row in enumerate(table):
                    mixed |= {(lam, a, b) for b, score in enumerate(row) if score >= 0}
                    mixed.add((lam, a, row.index(max(row))))
            sets.append(mixed)
        ours, true = sets
        return len(ours & true) / len(ours), len(ours & true) / len(true)

    return literal_agreement


def test_precision_and_recall_are_of_sets_and_may_differ(make, samples, literal_agreement):
    differ = False
    for seed in range(8):
        model = make("sequential", seed=seed)
        agreement = pair_agreement(model, *samples(), lambdas=GRID[1:-1])
        expected = literal_agreement(model, GRID[1:-1])
        assert (agreement.precision, agreement.recall) == pytest.approx(expected)
        differ |= agreement.precision != agreement.recall
    assert differ


def test_the_same_seed_draws_the_same_and_results_are_plain_numbers(make, samples, seeded):
    model = make("sequential")
    options = {"criterion_exemplars": 1, "rows": 3}
    for function in (approximation_error, pair_agreement):
        one, other, third = (
            function(model, *samples(), generator=seeded(seed), **options) for seed in (1, 1, 2)
        )
        assert one == other != third
        assert json.loads(json.dumps(one._asdict())).keys() == one._asdict().keys()


@pytest.mark.parametrize("function", [approximation_error, pair_agreement])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lambdas": []}, InputError, "lambdas is empty"),
        ({"lambdas": [0.5, 1.1]}, InputError, "lambdas has 1.1"),
        ({"lambdas": [float("nan")]}, InputError, "lambdas has nan"),
        ({"criterion_exemplars": 0}, InputError, "criterion_exemplars is 0; give 1 or more"),
        ({"rows": 0}, InputError, "rows is 0"),
        ({"average": "classes"}, UnknownNameError, "did you mean 'class'"),
    ],
)
def test_bad_settings_are_refused(function, options, error, message, make, samples):
    with pytest.raises(error, match=message):
        function(make("linear"), *samples(), **options)
