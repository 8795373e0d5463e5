"""gradmix predict with photos that resemble no learned class."""

import json

import numpy as np
import pytest
from PIL import Image

from gradmix import IncrementalClassifier
from gradmix.errors import InputError

COLOURS = {"red": (220, 30, 30), "blue": (30, 40, 220), "green": (30, 200, 40)}


def pixels(name, count, seed=0):
    rng = np.random.default_rng([seed, *COLOURS[name]])
    return rng.normal(COLOURS[name], 30, (count, 8, 8, 3)).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.gradmix"
    made = IncrementalClassifier(model="linear", holdout_per_class=10, random_state=0, device="cpu")
    made.fit(np.concatenate([pixels("red", 40), pixels("blue", 40)]), ["r"] * 40 + ["b"] * 40)
    made.save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    paths = [tmp_path / f"{name}.png" for name in COLOURS]
    for path in paths:
        Image.fromarray(pixels(path.stem, 1, seed=1)[0]).save(path)
    return paths


def test_unknown_photos_are_named(model, photos, gradmix):
    shown = gradmix("predict", model, *photos, "--unknown").splitlines()
    assert shown[0].startswith(f"{photos[0]}: r 0.")
    assert shown[1].startswith(f"{photos[1]}: b 0.")
    assert shown[2].startswith(f"{photos[2]}: unknown (nearest: ")
    rows = json.loads(gradmix("predict", model, *photos, "--unknown", "--json"))
    classifier = IncrementalClassifier.load(model)
    assert [row["unknown"] for row in rows] == [False, False, True]
    assert [row["novelty"] for row in rows] == pytest.approx(classifier.novelty(photos).tolist())
    labels = classifier.predict(photos, unknown="?")
    assert labels.tolist() == ["r", "b", "?"]


def test_unknown_photos_are_counted_on_standard_error(model, photos, invoke):
    outcome = invoke("predict", model, *photos, "--unknown")
    assert len(outcome.stdout.splitlines()) == 3
    assert outcome.stderr == "unknown images: 1 of 3\n"
    assert invoke("predict", model, *photos).stderr == ""
    assert invoke("predict", model, *photos, "--unknown", "--json").stderr == ""


def test_without_the_option_every_photo_gets_a_class(model, photos, gradmix):
    rows = json.loads(gradmix("predict", model, photos[0].parent, "--json", "--top", "9"))
    assert [sorted(row) for row in rows] == [["classes", "file"]] * 3
    assert all(sum(c["probability"] for c in row["classes"]) == pytest.approx(1) for row in rows)


def test_a_rate_that_needs_more_held_out_photos_is_refused(model, photos, gradmix):
    with pytest.raises(InputError, match=r"are 20 held-out samples.*0\.001 needs at least 999"):
        gradmix("predict", model, *photos, "--unknown", "--false-alarm-rate", "0.001")


def test_other_files_of_a_folder_are_counted(model, photos, invoke):
    folder = photos[0].parent
    (folder / "IMG_1.HEIC").touch()
    (folder / "notes.txt").touch()
    done = invoke("predict", model, folder)
    assert len(done.stdout.splitlines()) == 3
    expected = "skipped 2 of 5 files: 1 .heic, 1 .txt (convert .heic photos to .jpg)"
    assert f"{folder}: {expected}" in done.stderr
