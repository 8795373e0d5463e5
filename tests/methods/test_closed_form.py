"""Closed-form methods: exact in any order, without epochs, mixes or exemplars."""

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier, config_for
from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.runs.run import run

CLOSED = [name for name, info in METHODS.items() if not info.build.trains]


def rows(*labels, each=30, seed=0):
    """Rows around one centre per class; those of a class do not depend on the other classes."""
    centres = np.random.default_rng(99).normal(size=(10, 8)) * 2
    noise = [np.random.default_rng([seed, label]).normal(size=(each, 8)) for label in labels]
    y = np.repeat(labels, each)
    return (centres[y] + np.concatenate(noise)).astype("float32"), y


def learned(method, *calls, **params):
    classifier = IncrementalClassifier(method, model="linear", random_state=0, **params)
    for labels in calls:
        classifier.partial_fit(*rows(*labels))
    return classifier


def test_there_are_three():
    assert CLOSED == ["ridge", "ncm", "slda"]


@pytest.mark.parametrize("method", CLOSED)
@pytest.mark.parametrize("calls", [[(0,), (1,), (2,), (3,)], [(2, 3), (0, 1)], [(3,), (0, 1, 2)]])
def test_any_order_and_number_of_calls_gives_the_same_classifier(method, calls):
    X, _ = rows(0, 1, 2, 3, seed=5)
    together, apart = learned(method, (0, 1, 2, 3)), learned(method, *calls)
    ours, theirs = (
        (c.decision_function(X) * c._learned.method.calibrated.temperature)
        for c in (apart, together)
    )
    # The regulariser and the covariance follow from the sums; only the shares of the held-out
    # samples that calibrate the scores differ, and the temperature takes them out.
    order = [apart.classes_.tolist().index(label) for label in together.classes_]
    np.testing.assert_allclose(ours[:, order], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", CLOSED)
def test_a_run_has_the_accuracy_of_joint_learning(method):
    five, one = (
        run(config_for("digits", method=method, mix="none", model="linear", increments=increments))
        for increments in ((2,), (10,))
    )
    # Five tasks weigh their classes equally; joint learning weighs the samples.
    assert five.metrics["final_accuracy"] == pytest.approx(one.metrics["final_accuracy"], abs=2e-3)
    assert five.class_accuracy[-1] == pytest.approx(one.class_accuracy[-1])
    assert [task["memory"] for task in five.tasks] == [0] * 5


@pytest.mark.parametrize("method", CLOSED)
def test_a_run_needs_neither_mix_nor_network(method):
    config = config_for("digits", method=method)
    assert (config.mix, config.model) == ("none", "linear")


@pytest.mark.parametrize("method", CLOSED)
def test_mixes_and_other_networks_are_refused(method):
    with pytest.raises(InputError, match="no training steps and cannot mix; give mix='none'"):
        config_for("digits", method=method, mix="mixup")
    with pytest.raises(InputError, match="needs model='linear'"):
        run(config_for("digits", method=method, mix="none", model="mlp-small"))
    with pytest.raises(InputError, match="has no epochs"):
        IncrementalClassifier(method, model="linear", early_stopping=True).fit(*rows(0, 1))


@pytest.mark.parametrize("method", CLOSED)
def test_files_keep_everything(method, tmp_path):
    classifier = learned(method, (0, 1), (2,))
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    X, _ = rows(0, 1, 2, 4, seed=6)
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    more = rows(4, 0, seed=7)
    ours, theirs = (c.partial_fit(*more).predict_proba(X) for c in (again, classifier))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("method", CLOSED)
def test_forgetting_a_class_leaves_the_others_as_they_were(method):
    X, _ = rows(0, 2, 3, seed=8)
    never = learned(method, (0, 2, 3))
    gone = learned(method, (0, 1), (2, 3)).forget(1)
    assert gone.classes_.tolist() == [0, 2, 3]
    agreement = np.mean(gone.predict(X) == never.predict(X))
    assert agreement == 1.0 if method == "ncm" else agreement > 0.95


def test_ridge_is_the_solution_of_the_normal_equations():
    X, y = rows(0, 1, 2)
    method = learned("ridge", (0, 1, 2))._learned.method
    h = torch.nn.functional.normalize(torch.from_numpy(X).double())
    Y = torch.nn.functional.one_hot(torch.from_numpy(y)).double()
    lam = method.calibrated.solver.chosen_regulariser()
    weight = torch.linalg.solve(h.T @ h + lam * torch.eye(8, dtype=torch.float64), h.T @ Y)
    torch.testing.assert_close(method.calibrated.solver.linear().weight, weight)


def test_the_nearest_mean_is_predicted():
    X, y = rows(0, 1, 2)
    h = X / np.linalg.norm(X, axis=1, keepdims=True)
    means = np.stack([h[y == label].mean(0) for label in range(3)])
    probe, _ = rows(0, 1, 2, seed=9)
    g = probe / np.linalg.norm(probe, axis=1, keepdims=True)
    nearest = ((g[:, None] - means) ** 2).sum(2).argmin(1)
    assert np.array_equal(learned("ncm", (0, 1, 2)).predict(probe), nearest)


def test_random_features_need_a_whole_number_and_follow_the_seed():
    with pytest.raises(InputError, match=r"features is 1\.5"):
        config_for("digits", method="ridge", mix="none", model="linear", options={"features": 1.5})
    options = {"features": 50}
    one, two = (learned("ridge", (0, 1), (2,), options=options) for _ in range(2))
    X, _ = rows(0, 1, 2, seed=3)
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))
    assert one._learned.method.calibrated.solver.feature_size == 50


def test_probabilities_are_calibrated_on_held_out_samples():
    classifier = learned("ridge", (0, 1, 2, 3, 4))
    X, y = rows(0, 1, 2, 3, 4, each=200, seed=11)
    shares = classifier.predict_proba(X)
    confidence, accuracy = shares.max(1).mean(), np.mean(classifier.predict(X) == y)
    assert abs(confidence - accuracy) < 0.1
    raw = classifier.decision_function(X) * classifier._learned.method.calibrated.temperature
    plain = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    assert abs(plain.max(1).mean() - accuracy) > 0.3  # without a temperature it is not


def test_linear_is_ridge_by_default():
    classifier = IncrementalClassifier(model="linear", random_state=0).fit(*rows(0, 1))
    assert type(classifier._learned.method).__name__ == "RidgeRegression"
    assert IncrementalClassifier(epochs=1).fit(*rows(0, 1))._learned.method.trains
