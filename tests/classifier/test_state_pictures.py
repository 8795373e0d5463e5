"""Photos of the exemplars are stored beside their embeddings."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix import IncrementalClassifier
from gradmix.classifier.call_data import embed_photos, resized
from gradmix.classifier.export import contact_page, contact_sheet
from gradmix.classifier.setup import default_backbone
from gradmix.classifier.state import pack_pictures, unpack_pictures
from gradmix.errors import FileError, InputError
from gradmix.files import read_state_file, write_state_file

SIZE, HUES = 32, ("red", "green", "blue")

pytestmark = pytest.mark.skipif(
    default_backbone() is None, reason="the extra gradmix[photos] is not installed"
)
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def learned(learned_photos):
    return partial(learned_photos, holdout_per_class=0)


@pytest.fixture(scope="session")
def assert_pictures_fit(photos):
    def assert_pictures_fit(classifier):
        """Each picture shows the exemplar whose embedding has the same place in the memory."""
        X, y = classifier.exemplars()
        memory = classifier._learned.method.memory
        assert y.tolist() == [classifier._learned.labels.known[k] for k in memory.y.tolist()]
        backbone = classifier._learned.setup.backbone
        given = torch.from_numpy(photos(*HUES)[0]).permute(0, 3, 1, 2)
        learned_from = torch.cdist(memory.x, embed_photos(backbone, given, CPU)).argmin(1)
        shown, pixels = torch.from_numpy(X).float(), resized(backbone, given).float()
        nearest = torch.cdist(shown.flatten(1), pixels.flatten(1)).argmin(1)
        assert nearest.tolist() == learned_from.tolist()

    return assert_pictures_fit


@pytest.mark.parametrize("params", [{}, {"method": "er", "mix": "none", "epochs": 1}])
def test_every_exemplar_has_its_picture_after_any_number_of_calls(
    params, tmp_path, learned, assert_pictures_fit
):
    each = {"exemplars_per_class": 5, **params}
    classifier = learned(("red", "green"), ("blue",), ("green",), **each)
    assert classifier.exemplars()[0].shape == (15, 3, SIZE, SIZE)
    assert_pictures_fit(classifier)
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    assert again._learned.digest() == classifier._learned.digest()
    again.forget("red")
    assert set(again.exemplars()[1]) == {"green", "blue"}
    assert_pictures_fit(again)


def test_a_shrinking_memory_drops_the_pictures_with_the_exemplars(learned, assert_pictures_fit):
    classifier = learned(("red", "green"), ("blue",), exemplars_per_class=None, memory_total=7)
    assert np.unique(classifier.exemplars()[1], return_counts=True)[1].tolist() == [2, 3, 2]
    assert_pictures_fit(classifier)


def test_embeddings_are_float16_in_files(tmp_path, learned):
    classifier = learned(("red", "green"), holdout_per_class=2)
    classifier.save(tmp_path / "f")
    state = read_state_file(tmp_path / "f", "classifier")
    saved = state["training"]["method"]["memory"]["x"], state["holdout"]["x"]
    assert [x.dtype for x in saved] == [torch.float16] * 2
    again = IncrementalClassifier.load(tmp_path / "f")._learned
    assert torch.equal(again.method.memory.x, classifier._learned.method.memory.x)
    assert again.holdout.x.dtype == torch.float32


def test_without_images_only_embeddings_are_stored(tmp_path, learned):
    classifier = learned(("red", "green"), method="er", mix="none", epochs=1, keep_images=False)
    assert len(classifier._learned.method.memory) == 16
    with pytest.raises(InputError, match="keep_images=True"):
        classifier.exemplars()
    classifier.save(tmp_path / "f")
    assert "pictures" not in read_state_file(tmp_path / "f", "classifier")
    assert len(learned(("red", "green"), keep_images=False)._learned.method.memory) == 0


def test_pictures_can_be_looked_at_and_learned_by_another_classifier(photos, learned):
    classifier = learned(("red", "green"))
    assert contact_sheet(classifier._learned).startswith(b"\x89PNG")
    assert b"exemplars of red" in contact_page(classifier._learned)
    other = IncrementalClassifier(method="ncm", image_size=48, random_state=0)
    other.fit(*classifier.exemplars())
    assert other.score(*photos("red", "green", seed=3)) == 1.0


def test_images_must_be_kept_where_they_are_replayed(without_backbone, learned):
    with pytest.raises(InputError, match="keep_images is False, and er replays images"):
        learned(("red", "green"), keep_images=False, image_size=None)


def test_files_of_earlier_versions_have_no_pictures(tmp_path, photos, learned):
    classifier = learned(("red", "green"), method="er", mix="none", epochs=1)
    classifier.save(tmp_path / "f")
    state = read_state_file(tmp_path / "f", "classifier")
    del state["pictures"]
    for name in ("keep_images", "weights", "finetune", "verbose"):
        del state["params"][name]
    memory = state["training"]["method"]["memory"]
    memory["x"] = memory["x"].float()
    write_state_file(tmp_path / "g", "classifier", state)
    again = IncrementalClassifier.load(tmp_path / "g")
    assert again.keep_images is False
    X, _ = photos(*HUES, seed=4)
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert again.partial_fit(*photos("blue")).classes_.tolist() == sorted(HUES)


DAMAGE = {
    "too few": (lambda p: {"content": p["content"][: int(p["sizes"][0])], "sizes": p["sizes"][:1]}),
    "bytes": lambda p: {"content": p["content"][:-1], "sizes": p["sizes"]},
    "sizes": lambda p: {"content": p["content"], "sizes": -p["sizes"]},
    "no tensor": lambda p: {"content": [1, 2], "sizes": p["sizes"]},
}


@pytest.fixture(scope="module")
def saved(learned, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "f"
    learned(("red", "green")).save(path)
    return path


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_pictures_are_refused(case, tmp_path, saved):
    state = read_state_file(saved, "classifier")
    state["pictures"] = DAMAGE[case](state["pictures"])
    write_state_file(tmp_path / "g", "classifier", state)
    with pytest.raises(FileError, match="pictures"):
        IncrementalClassifier.load(tmp_path / "g")


@pytest.mark.parametrize("given", [(), (b"a",), (b"abc", b"", b"de")[:1], (b"abc", b"d")])
def test_pictures_survive_a_file(given):
    assert unpack_pictures(pack_pictures(given)) == given


# --- no exemplars at all --------------------------------------------------------------------


def test_closed_form_methods_need_no_exemplars(tmp_path, photos, learned):
    classifier = learned(("red", "green"), ("blue",), exemplars_per_class=0)
    assert classifier.score(*photos(*HUES, seed=1)) == 1.0
    assert classifier.exemplars()[0].shape == (0, 3, SIZE, SIZE)
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f").forget("red")
    assert again.classes_.tolist() == ["blue", "green"]
    many = learned(("red", "green"), ("blue",))
    X, _ = photos(*HUES, seed=2)
    np.testing.assert_array_equal(classifier.predict_proba(X), many.predict_proba(X))


def test_held_out_samples_may_be_all_that_is_stored(learned):
    classifier = learned(("red", "green"), exemplars_per_class=2, holdout_per_class=2, model="auto")
    assert len(classifier._learned.holdout) == 4


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "er"}, "exemplars_per_class is 0, and ER replays"),
        ({"holdout_per_class": 2}, "holdout_per_class is 2 and exemplars_per_class is 0"),
        ({"model": "mlp"}, "exemplars_per_class is 0, and ER replays"),
    ],
)
def test_an_empty_memory_is_refused_where_it_makes_no_sense(params, message, learned):
    with pytest.raises(InputError, match=message):
        learned(("red", "green"), exemplars_per_class=0, **params)


def test_weights_of_photos_in_files(tmp_path, photos):
    X, y = photos("red", "green", each=10)
    paths = [tmp_path / f"{number}.png" for number in range(len(X))]
    for path, pixels in zip(paths, X, strict=True):
        Image.fromarray(pixels).save(path)
    weights = np.arange(len(y)) % 2
    classifier = IncrementalClassifier(image_size=SIZE, random_state=0, holdout_per_class=0)
    classifier.fit(paths, y, sample_weight=weights)
    assert classifier._learned.counts == (5, 5)
    assert len(classifier.exemplars()[0]) == 10
