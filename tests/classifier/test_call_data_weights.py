"""Weights of samples: exact sums in closed form, draws in proportion where there is training."""

import numpy as np
import pytest
import torch

from gradmix.classifier.call_data import draw_by_weight
from gradmix.errors import InputError

CLOSED_FORM = ("ridge", "slda", "ncm")


@pytest.fixture(scope="session")
def closed(quick):
    def closed(method, **params):
        return quick(method=method, model="linear", **params)

    return closed


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_a_weight_of_two_is_two_samples(method, tmp_path, digest, rows, closed):
    X, y = rows("a", "b", "c", each=8)
    weights = np.arange(len(y)) % 3  # 0, 1 or 2
    weighted = closed(method).fit(X, y, sample_weight=weights)
    repeated = closed(method).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    test, _ = rows("a", "b", "c", seed=1)
    inputs = torch.tensor(test).float()
    scores = (c._learned.method.calibrated.solver.scores(inputs) for c in (weighted, repeated))
    np.testing.assert_allclose(*scores, rtol=1e-6, atol=1e-6)
    weighted.save(tmp_path / "f")
    again = type(weighted).load(tmp_path / "f")
    assert digest(again) == digest(weighted)
    assert np.array_equal(again.predict(test), weighted.predict(test))


def test_weights_of_one_change_nothing(quick, rows, closed):
    X, y = rows("a", "b")
    for make in (lambda: closed("ridge"), lambda: quick()):
        plain, weighted = make().fit(X, y), make().fit(X, y, sample_weight=np.ones(len(y)))
        assert np.array_equal(plain.decision_function(X), weighted.decision_function(X))


def test_only_heavy_samples_are_trained_on(quick, rows):
    X, y = rows("a", "b", each=20)
    weights = np.where(np.arange(len(y)) % 2, 1.0, 1e-9)
    classifier = quick(exemplars_per_class=40).fit(X, y, sample_weight=weights)
    stored = {row.tobytes() for row in classifier.exemplars()[0]}
    assert stored == {row.tobytes() for row in X[1::2].astype("float32")}
    assert classifier.report_.samples == len(y)


def test_weights_stay_with_their_samples_when_some_are_held_out(quick, rows):
    X, y = rows("a", "b", each=20)
    params = {"holdout_per_class": 4, "early_stopping": True, "exemplars_per_class": 40}
    weights = np.where(np.arange(len(y)) % 2, 1.0, 1e-9)
    classifier = quick(**params).partial_fit(X, y, sample_weight=weights)
    heavy = {row.tobytes() for row in X[1::2].astype("float32")}
    assert {row.tobytes() for row in classifier.exemplars()[0]} <= heavy


def test_draws_are_in_proportion_and_leave_no_class_out():
    y = torch.tensor([0] * 50 + [1] * 50 + [2])
    weights = torch.cat([torch.full((50,), 3.0), torch.full((50,), 1.0), torch.tensor([1e-9])])
    drawn = draw_by_weight(y, weights.double(), torch.Generator().manual_seed(0))
    counts = y[drawn].bincount()
    assert abs(int(counts[0]) - 76) <= 1
    assert int(counts[2]) == 1
    each = drawn[:-1].bincount(minlength=100)
    assert set(each[:50].tolist()) <= {1, 2}
    assert set(each[50:100].tolist()) <= {0, 1}


@pytest.mark.parametrize(
    "weights", [[1.0], np.full(40, -1.0), np.full(40, np.nan), np.zeros(40), ["a"] * 40]
)
def test_bad_weights_are_refused_before_any_work(weights, digest, quick, rows):
    X, y = rows("a", "b")
    classifier = quick().fit(X, y)
    before = digest(classifier)
    with pytest.raises(InputError, match="sample_weight"):
        classifier.partial_fit(X, y, sample_weight=weights)
    assert digest(classifier) == before


# --- forgetting in closed form --------------------------------------------------------------


@pytest.mark.parametrize("method", CLOSED_FORM)
@pytest.mark.parametrize("held", [0, 3])
def test_forgetting_with_the_samples_is_exact(method, held, rows, closed):
    X, y = rows("a", "b", "c", each=16)
    test, _ = rows("a", "b", seed=1)
    classifier = closed(method, holdout_per_class=held).fit(X, y)
    never = closed(method, holdout_per_class=held).fit(X, y)
    learned = never._learned
    own = learned.method.pool.y == 2
    classifier.forget("c", X[y == "c"])
    other = closed(method).fit(
        learned.method.pool.inputs((~own).nonzero().flatten()).numpy(),
        np.array(["a", "b"])[learned.method.pool.y[~own].numpy()],
    )
    found, expected = (
        c._learned.method.calibrated.solver.scores(torch.tensor(test).float())
        for c in (classifier, other)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_forgetting_without_the_samples_is_close(rows, closed):
    X, y = rows("a", "b", "c", each=40)
    test, expected = rows("a", "b", seed=1)
    classifier = closed("ridge").fit(X, y).forget("c")
    assert classifier.score(test, expected) > 0.95


def test_other_samples_and_trained_networks_are_refused(quick, rows, closed):
    X, y = rows("a", "b", "c")
    with pytest.raises(InputError, match="embeddings"):
        closed("ridge").fit(X, y).forget("c", X[y == "a"])
    with pytest.raises(InputError, match="embeddings has 3 rows"):
        closed("ridge").fit(X, y).forget("c", X[:3])
    with pytest.raises(InputError, match="X is given, but ER"):
        quick().fit(X, y).forget("c", X[y == "c"])
