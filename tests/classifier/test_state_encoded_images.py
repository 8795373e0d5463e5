"""Images in classifier files are encoded without loss when that is smaller."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import features

from gradmix import IncrementalClassifier
from gradmix.classifier.state import EXPANSION, EncodedImages, decode_images, encode_images
from gradmix.errors import FileError
from gradmix.files import read_state_file, write_state_file
from gradmix.files.schema import validate

pytestmark = pytest.mark.skipif(not features.check("webp"), reason="Pillow has no WebP")

load = IncrementalClassifier.load


def smooth(*classes, each=12, shape=(3, 16, 16), seed=0):
    """Images that change slowly from pixel to pixel, like photos, and their labels."""
    rng = np.random.default_rng([seed, *map(ord, "".join(classes))])
    y = np.repeat(classes, each)
    steps = rng.integers(-3, 4, size=(len(y), *shape)).cumsum(axis=2).cumsum(axis=3)
    return (128 + steps).clip(0, 255).astype(np.uint8), y


@pytest.fixture(scope="module")
def classifier(quick):
    made = quick(epochs=1, exemplars_per_class=9, holdout_per_class=3)
    return made.partial_fit(*smooth("a", "b"))


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("encoded") / "f"
    classifier.save(path)
    return path


@settings(max_examples=50)
@given(
    shape=st.tuples(
        st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 5]), st.integers(1, 40), st.integers(1, 40)
    ),
    kept_bits=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_no_bit_is_lost(shape, kept_bits, seed):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    images = noise & (255 >> kept_bits << kept_bits)
    encoded = encode_images(images)
    if isinstance(encoded, torch.Tensor):
        assert encoded is images
    else:
        assert len(encoded["content"]) < images.numel()
        checked = validate(EncodedImages, encoded, "f")
        assert torch.equal(decode_images(dict(checked)), images)


@pytest.mark.parametrize("shape", [(1, 30, 20), (3, 30, 20), (4, 30, 20)])
def test_smooth_images_are_smaller(shape):
    images = torch.from_numpy(smooth("a", shape=shape)[0])
    encoded = encode_images(images)
    assert len(encoded["content"]) < images.numel() / 1.5
    assert torch.equal(decode_images(encoded), images)


def test_transparent_pixels_keep_their_colours():
    images = torch.from_numpy(smooth("a", shape=(4, 30, 20))[0])
    images[:, 3] = 0
    assert torch.equal(decode_images(encode_images(images)), images)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(9, 4),
        torch.zeros(2, 3, 64, 64, dtype=torch.uint8),  # would expand too much
        torch.zeros(0, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 1, 1, 16_384, dtype=torch.uint8),
    ],
    ids=["rows", "black", "none", "wide"],
)
def test_other_tensors_stay(other):
    assert encode_images(other) is other


def test_without_webp_pixels_are_stored(classifier, saved, tmp_path, monkeypatch, digest):
    monkeypatch.setattr("gradmix.classifier.state.features.check", lambda name: False)
    classifier.save(tmp_path / "f")
    assert (tmp_path / "f").stat().st_size > saved.stat().st_size
    assert read_state_file(tmp_path / "f", "classifier")["contents"] == 1
    assert digest(load(tmp_path / "f")) == digest(classifier)


def test_a_classifier_returns(classifier, saved, tmp_path, digest):
    state = read_state_file(saved, "classifier")
    assert state["contents"] == 2
    for part in (state["training"]["method"]["memory"], state["holdout"]):
        assert part["x"].keys() == {"content", "sizes", "shape"}
    again = load(saved)
    assert digest(again) == digest(classifier)
    again.save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == saved.read_bytes()


def test_learning_more_gives_the_same_bits_with_and_without_a_file(quick, tmp_path, digest):
    one = quick(epochs=1, exemplars_per_class=9, method="icarl", mix="none")
    one.fit(*smooth("a", "b")).save(tmp_path / "f")
    other = load(tmp_path / "f")
    for made in (one, other):
        made.partial_fit(*smooth("c", "a", seed=1))
    assert digest(one) == digest(other)


SMALL = {"shape": [3, 16, 16]}
FORGED = {
    "huge": ({"shape": [3, 16_000, 16_000]}, f"at most {EXPANSION} times"),
    "longer side": ({"shape": [3, 2**20, 16]}, "shape"),
    "two dimensions": ({"shape": [16, 16]}, "shape"),
    "two channels": ({"shape": [2, 16, 16]}, "cannot be decoded"),
    "another shape": ({"shape": [3, 16, 17]}, r"not all have the shape \(3, 16, 17\)"),
    "a larger image": (
        lambda x: encode_images(torch.from_numpy(smooth("a", shape=(3, 400, 400))[0])) | SMALL,
        r"not all have the shape \(3, 16, 16\)",
    ),
    "another number": (
        lambda x: {"content": x["content"][: int(x["sizes"][0])], "sizes": x["sizes"][:1]},
        "for 12 labels",
    ),
    "no images": (lambda x: {"content": x["content"][:0], "sizes": x["sizes"][:0]}, "0 images"),
    "too few bytes": (lambda x: {"content": x["content"][:-1]}, "bytes, not"),
    "negative sizes": (lambda x: {"sizes": -x["sizes"]}, "below 1"),
    "damaged": (lambda x: {"content": x["content"].clone().fill_(7)}, "not an image"),
    "no tensor": ({"content": [1, 2]}, "tensor"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_images_are_refused(saved, tmp_path, case):
    change, message = FORGED[case]
    state = read_state_file(saved, "classifier")
    x = state["training"]["method"]["memory"]["x"]
    x.update(change(x) if callable(change) else change)
    write_state_file(tmp_path / "f", "classifier", state)
    with pytest.raises(FileError, match=message):
        load(tmp_path / "f")


@pytest.mark.parametrize("place", ["params", "known", "training", "holdout"])
def test_images_in_another_place_are_refused(saved, tmp_path, place):
    state = read_state_file(saved, "classifier")
    state[place] = state["training"]["method"]["memory"]["x"]
    write_state_file(tmp_path / "f", "classifier", state)
    with pytest.raises(FileError):
        load(tmp_path / "f")
