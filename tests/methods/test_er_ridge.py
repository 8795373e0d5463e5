"""ER-Ridge: ER's network times a ridge regression on all samples seen."""

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier, config_for
from gradmix.closed_form import Ridge, calibration
from gradmix.errors import InputError
from gradmix.runs.run import run

OPTIONS = {"features": 40.0}


@pytest.fixture
def trained(make_training):
    training = make_training("er-ridge", options=OPTIONS)
    training.run_tasks(2)
    return training.method


def test_the_network_is_that_of_er(trained, make_training, assert_same):
    er = make_training("er")
    er.run_tasks(2)
    assert_same(trained.model.state_dict(), er.method.model.state_dict())
    assert_same(trained.memory.state_dict(), er.method.memory.state_dict())


def test_the_ridge_regression_is_that_of_all_samples_at_once(make_training):
    training = make_training("er-ridge", options=OPTIONS)
    x, y = [], []
    for task in range(3):
        training.stop_in_task(task)
        pool = training.method.pool
        x.append(pool.inputs(torch.arange(pool.num_new)).flatten(1))
        y.append(pool.y[: pool.num_new])
    solver = training.method.ridge.solver
    joint = Ridge(x[0].shape[1], features=40, generator=torch.Generator())
    joint._projection = solver._projection
    joint.update(torch.cat(x), torch.cat(y))
    assert joint.counts == solver.counts
    torch.testing.assert_close(solver.linear(), joint.linear())


def test_predictions_are_the_product_of_the_probabilities(trained):
    x = trained.pool.inputs(torch.arange(9))
    parts = trained.predictors()
    assert list(parts) == ["main", "network", "ridge"]
    product = parts["network"](x).softmax(1) * parts["ridge"](x).softmax(1)
    product /= product.sum(1, keepdim=True)
    torch.testing.assert_close(parts["main"](x).softmax(1), product)
    torch.testing.assert_close(trained.predictor_module()(x), trained.predict(x))


def test_new_classes_are_known_from_the_start_of_their_task(make_training):
    training = make_training("er-ridge", options=OPTIONS)
    training.stop_in_task(1)
    assert training.method.ridge.solver.classes == (0, 1, 2, 3)


def test_the_ridge_regression_remembers_what_the_network_forgets():
    result = run(config_for("digits", method="er-ridge", epochs=3, exemplars_per_class=1))
    found = {name: part["metrics"]["final_accuracy"] for name, part in result.variants.items()}
    assert found["ridge"] > found["network"] + 0.1
    assert result.metrics["final_accuracy"] > found["network"] + 0.05


def classifier(*calls, **params):
    learned = IncrementalClassifier("er-ridge", epochs=2, random_state=0, options=OPTIONS, **params)
    for labels in calls:
        learned.partial_fit(*rows(*labels))
    return learned


def rows(*labels, seed=0):
    centres = np.random.default_rng(99).normal(size=(10, 8)) * 2
    y = np.repeat(labels, 30)
    noise = np.random.default_rng([seed, *labels]).normal(size=(len(y), 8))
    return (centres[y] + noise).astype("float32"), y


def test_files_keep_everything(tmp_path):
    first = classifier((0, 1), (2,))
    first.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    X, _ = rows(0, 1, 2, 3, seed=6)
    assert np.array_equal(again.predict_proba(X), first.predict_proba(X))
    more = rows(3, 0, seed=7)
    ours, theirs = (c.partial_fit(*more).predict_proba(X) for c in (again, first))
    assert np.array_equal(ours, theirs)


def test_a_forgotten_class_is_never_predicted():
    gone = classifier((0, 1), (2, 3)).forget(1)
    X, y = rows(0, 2, 3, seed=8)
    assert gone.classes_.tolist() == [0, 2, 3]
    assert np.mean(gone.predict(X) == y) > 0.9
    assert gone._learned.method.ridge.solver.classes == (0, 1, 2)


def test_a_state_without_sums_is_refused(trained):
    state = trained.state_dict()
    del state["sums"]
    with pytest.raises(InputError, match="sums of the ridge regression are missing"):
        trained.load_state_dict(state)


@pytest.mark.parametrize(
    "sums",
    [
        "text",
        {},
        {"projection": torch.zeros(())},
        {"projection": torch.zeros(10**12, 0, dtype=torch.float16)},
        {"projection": torch.zeros(0, 40, dtype=torch.float16)},
        {"projection": torch.zeros(3, 41, dtype=torch.float16)},
    ],
)
def test_a_damaged_random_matrix_is_refused_before_one_is_drawn(trained, sums):
    with pytest.raises(InputError, match=r"sums: .*projection"):
        trained.load_state_dict({**trained.state_dict(), "sums": sums})


def test_large_inputs_are_learned_in_small_batches(trained, monkeypatch):
    monkeypatch.setattr(calibration, "NUMBERS", 3 * trained.ridge.solver.embedding_size)
    rows, one = [], trained.pool.inputs(torch.arange(1))
    trained.ridge.learn(
        lambda part: rows.append(len(part)) or one.expand(len(part), *one.shape[1:]),
        torch.arange(20) % 4,
    )
    assert max(rows) == 3
    assert sum(rows) >= 20
