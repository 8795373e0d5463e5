"""Files that an earlier version of gradmix wrote still load, and predict the same."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier

FOLDER = Path(__file__).with_name("old_files")
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def own_network():
    layers = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4 * 49, 2))


@pytest.mark.parametrize("name", EXPECTED)
def test_old_files_load_predict_and_learn(name, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(lzma.decompress((FOLDER / f"{name}.gradmix.xz").read_bytes()))
    own = {"model": own_network()} if name == "icarl-images" else {}
    classifier = IncrementalClassifier.load(path, **own)
    expected = EXPECTED[name]
    assert classifier.classes_.tolist() == expected["classes"]
    X = np.array(expected["X"], dtype=np.uint8 if own else float)
    np.testing.assert_allclose(classifier.predict_proba(X), expected["probabilities"], atol=1e-4)
    classifier.set_params(epochs=1).partial_fit(
        np.concatenate([X, X, X]), ["d"] * (3 * len(X)), classes=["a", "b", "c", "d"]
    )
    assert "d" in classifier.classes_.tolist()
    classifier.save(path)
    assert IncrementalClassifier.load(path, **own).report_ == classifier.report_
