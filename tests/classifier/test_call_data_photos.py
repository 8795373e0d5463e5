"""Photos through a pretrained backbone: embedded once, learned in closed form."""

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix import IncrementalClassifier
from gradmix.classifier import setup
from gradmix.classifier.call_data import Reader
from gradmix.classifier.report import Observer
from gradmix.classifier.setup import DEFAULT, default_backbone, published_backbone
from gradmix.data.image_folders.decode import ImageFiles
from gradmix.data.stream import StreamedImages
from gradmix.diagnostics import pair_agreement
from gradmix.errors import CorruptFileError, FileError, InputError, MissingPackageError
from gradmix.files import read_state_file, write_state_file
from gradmix.models import LinearModel

SIZE = 32  # the size of `learned_photos`

pytestmark = pytest.mark.skipif(
    default_backbone() is None, reason="the extra gradmix[photos] is not installed"
)


@pytest.fixture(scope="module")
def classifier(learned_photos):
    return learned_photos(("red", "green"), ("blue",), holdout_per_class=2)


def test_photos_are_learned_by_ridge_on_frozen_features(classifier, photos):
    setup = classifier._learned.setup
    assert setup.backbone.name == DEFAULT
    assert (setup.layout.shape, setup.given.shape) == ((1280,), (3, SIZE, SIZE))
    assert type(classifier._learned.method).__name__ == "RidgeRegression"
    assert classifier.score(*photos("red", "green", "blue", seed=1)) == 1.0
    assert len(classifier._learned.method.memory) == 18  # for their photos; ridge needs none
    assert classifier.report_.epochs == 0


def test_images_of_any_size_and_channels_are_predicted(classifier, tmp_path, photos):
    large, y = photos("red", "blue", each=2, side=75, seed=2)
    assert classifier.predict(large).tolist() == y.tolist()
    assert classifier.predict(large.transpose(0, 3, 1, 2)).tolist() == y.tolist()
    with_alpha = np.concatenate([large, np.full((4, 75, 75, 1), 255, np.uint8)], axis=3)
    assert classifier.predict(with_alpha).tolist() == y.tolist()
    grey = classifier.predict(large.mean(3).astype("uint8"))
    assert set(grey) <= {"red", "green", "blue"}
    wide = tmp_path / "wide.png"
    Image.fromarray(np.hstack([large[2], large[2]])).save(wide)
    assert classifier.predict([wide]).tolist() == ["blue"]
    with pytest.raises(InputError, match="rows of numbers"):
        classifier.predict(np.zeros((2, 1280)))


def test_the_order_of_the_classes_makes_no_difference(photos, learned_photos):
    X, _ = photos("red", "green", "blue", seed=3)
    one = learned_photos(("red", "green", "blue"), holdout_per_class=0)
    other = learned_photos(("blue",), ("red",), ("green",), holdout_per_class=0)
    assert one.predict(X).tolist() == other.predict(X).tolist()
    ours, theirs = (
        c.decision_function(X) * c._learned.method.calibrated.temperature for c in (one, other)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_files_name_the_backbone_and_refuse_other_weights(classifier, tmp_path, photos):
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    X, _ = photos("red", "blue", seed=4)
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    state = read_state_file(tmp_path / "f", "classifier")
    state["features"]["digest"] = "0" * 64
    write_state_file(tmp_path / "g", "classifier", state)
    with pytest.raises(FileError, match=r"features\.digest"):
        IncrementalClassifier.load(tmp_path / "g")
    state["features"]["size"] = "large"
    write_state_file(tmp_path / "g", "classifier", state)
    with pytest.raises(FileError, match=r"features\.size"):
        IncrementalClassifier.load(tmp_path / "g")


def test_without_the_extra_a_network_is_trained_from_scratch(monkeypatch, learned_photos):
    monkeypatch.setattr(setup, "default_backbone", lambda: None)
    classifier = learned_photos(("red", "green"), epochs=1, image_size=None)
    assert classifier._learned.setup.backbone is None
    assert classifier._learned.setup.model == "cnn"


def test_a_missing_extra_is_named(monkeypatch, learned_photos):
    def missing(*_, **__):
        raise MissingPackageError("install it with: pip install 'gradmix[photos]'")

    monkeypatch.setattr(setup, "load_pretrained", missing)
    published_backbone.cache_clear()
    assert default_backbone() is None
    with pytest.raises(MissingPackageError, match=r"gradmix\[photos\]"):
        learned_photos(("red", "green"), model=DEFAULT)
    published_backbone.cache_clear()


def test_replay_methods_learn_embeddings_with_every_mix(photos, learned_photos):
    classifier = learned_photos(("red", "green"), ("blue",), method="er", mix="remix", lr=0.1)
    assert classifier.score(*photos("red", "green", "blue", seed=5)) > 0.9
    assert classifier._learned.method.memory.x.shape == (18, 1280)  # and six are held out


def test_unknown_classes_are_recognised_with_held_out_samples(photos, learned_photos):
    classifier = learned_photos(("red", "green"), holdout_per_class=2)
    X, _ = photos("blue", seed=6)
    known, _ = photos("red", "green", seed=7)
    assert classifier.novelty(X).mean() > classifier.novelty(known).mean()
    labels = classifier.predict(X, unknown="?", false_alarm_rate=0.25)
    assert set(labels) <= {"red", "green", "?"}
    with pytest.raises(InputError, match="holdout_per_class"):
        learned_photos(("red", "green"), holdout_per_class=0).predict(X, unknown="?")
    with pytest.raises(InputError, match="unknown has"):
        classifier.predict(X, unknown=3)


def test_embeddings_are_the_samples(classifier, photos):
    X, _ = photos("red", each=3)
    embedded = classifier.embed(X)
    assert embedded.shape == (3, 1280)
    assert np.array_equal(embedded, embedded.astype("float16").astype("float32"))


def test_progress_counts_the_photos(photos):
    classifier, seen = IncrementalClassifier(image_size=SIZE, random_state=0), []
    reader = Reader(classifier, classifier._params(), None, Observer(callback=seen.append))
    reader.read_call(*photos("red", "green", each=20))
    assert seen == [(32, 40), (40, 40)]


@pytest.fixture
def folder(tmp_path, photos):
    x, y = photos("red", "green", each=20)
    for number, (image, name) in enumerate(zip(x, y, strict=True)):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / name / f"{number:02}.png")
    return tmp_path


def test_photos_of_a_folder_are_decoded_once_in_batches(folder, monkeypatch):
    decoded, decode = [], ImageFiles.decode

    def counted(files, row, into):
        decoded.append(row)
        decode(files, row, into)

    monkeypatch.setattr(ImageFiles, "decode", counted)
    classifier = IncrementalClassifier(image_size=SIZE, random_state=0)
    reader = Reader(classifier, classifier._params(), None)
    inputs, backbone = reader._read_to_learn(folder, None)
    assert isinstance(inputs.x, StreamedImages)  # in their files until they are embedded
    assert decoded == []
    embeddings = reader.embed(inputs.x, backbone)
    assert sorted(decoded) == list(range(40))
    pixels = inputs.x.index_select(0, torch.arange(40))
    assert torch.equal(embeddings, reader.embed(pixels, backbone))


def test_an_unreadable_photo_is_named_or_skipped(folder):
    bad = folder / "red" / "07.png"
    bad.write_bytes(bad.read_bytes()[:-200])
    classifier = IncrementalClassifier(image_size=SIZE, random_state=0)
    reader = Reader(classifier, classifier._params(), None)
    with pytest.raises(CorruptFileError, match=r"red/07\.png.*--skip-unreadable"):
        reader.read_call(folder)
    said = []
    data = reader.read_call(folder, skip=said.append)
    assert len(data.x) == len(data.y) == 39
    assert "skipped 1 of 40 images" in said[0]


def test_the_criterion_is_exact_on_a_linear_head():
    """Theorem 2 approximates embeddings of mixed inputs; here they are mixed inputs."""
    generator = torch.Generator().manual_seed(0)
    model = LinearModel(12, 6)
    y = torch.arange(6).repeat_interleave(8)
    x = torch.randn(48, 12, generator=generator) + torch.randn(6, 12, generator=generator)[y]
    memory, current = (x[:24], y[:24]), (x[24:], y[24:])
    found = pair_agreement(model, memory=memory, current=current, generator=generator)
    assert (found.precision, found.recall) == (1.0, 1.0)


def test_photos_are_held_out_by_default(tmp_path, photos, learned_photos):
    classifier = learned_photos(("red", "green"), ("blue",))
    held = classifier._learned.holdout
    assert held.y.bincount().tolist() == [2, 2, 2]  # at most a quarter of eight photos
    assert classifier._learned.setup.params["holdout_per_class"] == 10
    classifier.save(tmp_path / "m")
    again = IncrementalClassifier.load(tmp_path / "m").partial_fit(*photos("red", seed=8))
    assert len(again._learned.holdout) > 6
    assert (
        learned_photos(("red",), exemplars_per_class=4)._learned.setup.params["holdout_per_class"]
        == 1
    )
    assert len(learned_photos(("red",), memory_total=40)._learned.holdout) == 0
    assert (
        IncrementalClassifier(model="linear").fit([[0.0], [1.0]] * 5, [0, 1] * 5).report_.held_out
        == 0
    )
