"""gradmix export: the name of the file to write."""

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.errors import InputError


@pytest.fixture
def model(tmp_path):
    made = IncrementalClassifier(model="linear", epochs=1, random_state=0, device="cpu")
    made.fit(np.eye(10), ["a", "b"] * 5).save(tmp_path / "m.gradmix")
    return tmp_path / "m.gradmix"


@pytest.mark.parametrize(
    ("args", "written"),
    [((), None), (("my.onnx",), "my.onnx"), (("--out", "my.onnx"), "my.onnx")],
)
def test_the_file_may_be_given_with_or_without_the_option(
    model, gradmix, monkeypatch, args, written
):
    targets = []
    monkeypatch.setattr(IncrementalClassifier, "export", lambda _, path: targets.append(path))
    written = str(model.with_suffix(".onnx")) if written is None else written
    assert f"model exported to {written}\n" in gradmix("export", model, *args)
    assert targets == [written]


def test_two_files_are_refused(model, gradmix):
    with pytest.raises(InputError, match=r"'a\.onnx' and --out 'b\.onnx' are given; give one file"):
        gradmix("export", model, "a.onnx", "--out", "b.onnx")


def test_the_model_is_never_overwritten(model, gradmix):
    content = model.read_bytes()
    with pytest.raises(InputError, match="which is the model itself; give another file"):
        gradmix("export", model, "--out", model.parent / "." / model.name)
    assert model.read_bytes() == content
    named = model.rename(model.with_suffix(".onnx"))
    with pytest.raises(InputError, match="which is the model itself; give another file"):
        gradmix("export", named)
    assert named.read_bytes() == content
