"""A classifier learns photos in shards as it learns the folder, without holding them in memory."""

import shutil

import numpy as np
import pytest
from PIL import Image

from gradmix import IncrementalClassifier
from gradmix.classifier.inputs import InputReader
from gradmix.classifier.state import digest
from gradmix.data.image_folders.write_shards import write_shards
from gradmix.data.stream import StreamedImages


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, shade in (("cat", 60), ("dog", 180)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = shade + rng.integers(-40, 41, (8, 8, 3))
            path = tmp_path / "photos" / name / f"{number}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def shards(folder, tmp_path):
    write_shards(folder, tmp_path / "shards", size=3000)
    return tmp_path / "shards"


def test_photos_beyond_the_limit_of_memory_are_streamed(folder, monkeypatch):
    pixels = InputReader(IncrementalClassifier()).read(folder).x
    monkeypatch.setattr("gradmix.data.image_folders.read.IN_MEMORY", 1000)
    streamed = InputReader(IncrementalClassifier()).read(folder).x
    assert isinstance(streamed, StreamedImages)
    assert digest([pixels]) == digest([streamed])


@pytest.mark.parametrize(
    "params",
    [
        {"model": "mlp-small", "epochs": 2, "early_stopping": True, "holdout_per_class": 2},
        {"model": "linear", "method": "slda", "exemplars_per_class": 3},
    ],
)
def test_shards_give_the_classifier_of_the_folder(folder, shards, params, tmp_path):
    ours, theirs = (IncrementalClassifier(random_state=0, device="cpu", **params) for _ in range(2))
    ours.partial_fit(shards)
    theirs.partial_fit(folder)
    assert ours._fitted().digest() == theirs._fitted().digest()
    assert ours.predict(shards).tolist() == theirs.predict(folder).tolist()
    if "method" in params:
        shutil.copytree(folder / "cat", tmp_path / "only" / "cat")
        write_shards(tmp_path / "only", tmp_path / "cats")
        ours.forget("cat", tmp_path / "cats")
        theirs.forget("cat", tmp_path / "only")
        assert ours._fitted().digest() == theirs._fitted().digest()
