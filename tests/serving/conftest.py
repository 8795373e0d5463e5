"""A small model of coloured photos, quickly made."""

import io

import numpy as np
import pytest
from PIL import Image

from gradmix import IncrementalClassifier

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}


def photos(name, count, seed=0, side=8):
    rng = np.random.default_rng([seed, *COLOURS[name]])
    noisy = rng.normal(COLOURS[name], 30, (count, side, side, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def learn(path, *names):
    """Write a model of some colours."""
    classifier = IncrementalClassifier(
        model="linear", holdout_per_class=10, random_state=0, device="cpu"
    )
    X = np.concatenate([photos(name, 40) for name in names])
    classifier.fit(X, np.repeat(names, 40)).save(path)


def encode(name="red", kind="PNG", size=(30, 20)):
    """Return a photo of a colour as an encoded file."""
    file = io.BytesIO()
    Image.fromarray(photos(name, 1, seed=1)[0]).resize(size).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session", name="photos")
def _photos():
    return photos


@pytest.fixture(scope="session")
def encoded():
    """The maker of photos."""
    return encode


@pytest.fixture(scope="session")
def write_model():
    """The maker of models."""
    return learn


@pytest.fixture(scope="session")
def made_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "m.gradmix"
    learn(path, "red", "blue", "green")
    return path


@pytest.fixture
def model_file(made_model, tmp_path):
    """A model file of one's own."""
    path = tmp_path / "colours.gradmix"
    path.write_bytes(made_model.read_bytes())
    return path
