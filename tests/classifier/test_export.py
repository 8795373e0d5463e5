"""ONNX files give the probabilities of the classifier."""

import json
import sys

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier
from gradmix.errors import FileError, InputError, MissingPackageError

ort = pytest.importorskip("onnxruntime", reason="the extra gradmix[export] is not installed")
pytest.importorskip("onnxscript", reason="the extra gradmix[export] is not installed")


def rows(each=12, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(["a", "b", "c"], each)
    return (rng.normal(size=(len(y), 6)) + np.repeat([0, 3, 6], each)[:, None]).astype("float32"), y


def images(each=6):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (2 * each, 3, 20, 20), dtype=np.uint8), np.repeat([0, 1], each)


CASES = {
    "mlp": ({"epochs": 2}, rows()),
    "ridge": ({"model": "linear"}, rows()),
    "random features": ({"model": "linear", "options": {"features": 20}}, rows()),
    "resnet": ({"model": "resnet18-tiny", "epochs": 1, "batch_size": 6}, images()),
    "foster": ({"method": "foster", "epochs": 1}, rows()),
}
QUICK = ("mlp", "random features")


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_probabilities_agree_for_any_batch_size(case, tmp_path):
    params, (X, y) = CASES[case]
    classifier = IncrementalClassifier(random_state=0, **params).fit(X, y)
    classifier.export(tmp_path / "m.onnx")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"))
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    assert names == classifier.classes_.tolist()
    for number in (1, 5):
        [found] = session.run(["probabilities"], {"samples": X[:number]})
        np.testing.assert_allclose(found, classifier.predict_proba(X[:number]), atol=1e-4)


def test_the_network_is_public():
    X, y = rows()
    classifier = IncrementalClassifier(epochs=1, random_state=0).fit(X, y)
    with torch.no_grad():
        found = classifier.network_(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, classifier.predict_proba(X), atol=1e-5)
    assert classifier.network_.classes == ["a", "b", "c"]


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    classifier = IncrementalClassifier("icarl", epochs=1, random_state=0).fit(*rows())
    with pytest.raises(InputError, match="ICaRL predicts by the means"):
        classifier.export(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    other = IncrementalClassifier(epochs=1, random_state=0).fit(*rows())
    with pytest.raises(MissingPackageError, match=r"gradmix\[export\]"):
        other.export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_an_error_of_the_file(tmp_path):
    classifier = IncrementalClassifier(model="linear", random_state=0).fit(*rows())
    with pytest.raises(FileError, match="cannot be written"):
        classifier.export(tmp_path / "none" / "m.onnx")
