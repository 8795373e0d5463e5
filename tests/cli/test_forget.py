"""gradmix forget: classes leave the file; a wrong name changes nothing."""

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.errors import CorruptFileError, InputError


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat([3, 5, 7], 20)
    made = IncrementalClassifier(model="mlp-small", epochs=2, random_state=0, device="cpu")
    made.fit(rng.normal(size=(60, 4)) + y[:, None], y).save(tmp_path / "m.gradmix")
    return tmp_path / "m.gradmix"


def test_classes_leave_the_file(model, gradmix):
    shown = gradmix("forget", model, "5")
    assert shown == f"removed 5 from {model}; remaining: 3, 7\n"
    left = IncrementalClassifier.load(model)
    assert left.classes_.tolist() == [3, 7]
    assert set(left.exemplars()[1].tolist()) == {3, 7}


@pytest.mark.parametrize("names", [("4",), ("3", "9"), ("3", "5", "7")])
def test_a_refused_call_leaves_the_file_as_it_was(model, gradmix, names):
    before = model.read_bytes()
    with pytest.raises(InputError):
        gradmix("forget", model, *names)
    assert model.read_bytes() == before


def test_photos_belong_to_one_class(model, gradmix, tmp_path):
    with pytest.raises(InputError, match="one class at a time"):
        gradmix("forget", model, "3", "5", "--photos", tmp_path)


def test_a_photo_that_cannot_be_read_is_named_with_a_remedy(gradmix, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    made = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0, device="cpu")
    made.fit(x, np.repeat(["a", "b"], 6)).save(tmp_path / "m.gradmix")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_text("no picture")
    with pytest.raises(CorruptFileError, match=r"1\.jpg: not an image file.*; move such files"):
        gradmix("forget", tmp_path / "m.gradmix", "a", "--photos", tmp_path / "a")
