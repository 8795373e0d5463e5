"""scikit-learn's conventions, by its own checks."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gradmix import IncrementalClassifier
from gradmix.settings import ClassifierSettings, RunSettings

EXPECTED_FAILURES: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "training draws samples by weight",
    "check_methods_subset_invariance": "scores in float32 differ in the last bit between batches",
}
"""Checks that cannot apply, each with the reason."""


@pytest.mark.filterwarnings("ignore::gradmix.errors.DataWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [IncrementalClassifier(model="mlp-small", epochs=10, lr=0.05, random_state=0, device="cpu")],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_check_estimator(estimator, check):
    check(estimator)


def test_parameters_are_kept_as_they_are_given():
    classifier = IncrementalClassifier("mir", "none", lr_steps=[3], options={"candidates": 3.0})
    params = classifier.get_params()
    assert (params["method"], params["mix"], params["lr_steps"]) == ("mir", "none", [3])
    again = clone(classifier.set_params(epochs=7))
    assert again.get_params() == {**params, "epochs": 7}
    assert is_classifier(again)
    with pytest.raises(NotFittedError, match="not fitted"):
        again.predict([[1.0]])


def test_pipelines_and_cross_validation(quick, rows):
    X, y = rows(0, 1, 2)
    pipeline = make_pipeline(StandardScaler(), quick(epochs=10))
    assert pipeline.fit(X, y).score(X, y) > 0.9
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.9
    search = GridSearchCV(quick(), {"epochs": [1, 10]}, cv=2).fit(X, y)
    assert search.best_params_["epochs"] == 10


def test_pickles_and_copies_hold_everything(digest, quick, rows):
    X, y = rows("a", "b")
    classifier = quick(holdout_per_class=3).fit(X, y)
    again = pickle.loads(pickle.dumps(classifier))
    assert digest(again) == digest(classifier)
    more = rows("c", "b", seed=1)
    assert digest(again.partial_fit(*more)) == digest(classifier.partial_fit(*more))


def test_fit_starts_anew_and_partial_fit_continues(digest, quick, rows):
    X, y = rows(0, 1)
    classifier = quick().fit(X, y)
    assert classifier.classes_.tolist() == [0, 1]
    first = digest(classifier)
    classifier.partial_fit(*rows(7, 5))
    assert classifier.classes_.tolist() == [0, 1, 5, 7]
    assert [report.call for report in classifier.history_] == [1, 2]
    assert digest(classifier.fit(X, y)) == first
    assert digest(quick().partial_fit(X, y)) == first


@pytest.mark.parametrize("state", [None, 3, np.random.RandomState(3), np.int64(3)])
def test_random_state_may_be_what_scikit_learn_takes(state, quick, rows):
    classifier = quick(random_state=state, epochs=1)
    assert classifier.fit(*rows(0, 1)).score(*rows(0, 1)) >= 0


def test_classes_may_be_announced(quick, rows):
    classifier = quick().partial_fit(*rows("b", "c"), classes=["a", "b", "c", "d"])
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]
    shares = classifier.predict_proba(rows("b", "c")[0])
    assert shares.shape == (40, 4)
    assert (shares[:, [0, 3]] == 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    classifier.partial_fit(*rows("a"))
    assert (classifier.predict_proba(rows("a")[0])[:, 0] > 0).all()


def test_every_parameter_is_a_declared_setting():
    declared = {*RunSettings.model_fields, *ClassifierSettings.model_fields}
    assert {*IncrementalClassifier().get_params()} <= declared
