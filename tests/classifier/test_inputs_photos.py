"""Photos of every kind: learned, predicted and measured, resized alike."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from gradmix import IncrementalClassifier
from gradmix.classifier.setup import default_backbone
from gradmix.errors import CorruptFileError, DataNotFoundError, InputError

WITH_BACKBONE = default_backbone() is not None
SCENES = {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}  # 427 x 640


def crops(name, count, seed=0):
    """Cut real photos of odd sizes: portrait, landscape, square and panoramic."""
    rng = np.random.default_rng([seed, len(name)])
    scene = SCENES[name]
    found = []
    for number in range(count):
        height, width = [(120, 80), (70, 200), (100, 100), (60, 300)][number % 4]
        top = rng.integers(0, scene.shape[0] - height)
        left = rng.integers(0, scene.shape[1] - width)
        found.append(scene[top : top + height, left : left + width])
    return found


def encoded(array, kind="PNG", mode=None, **options):
    image, file = Image.fromarray(array), io.BytesIO()
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def kinds_of(array, folder):
    """One photo in every form that `predict` takes, without loss."""
    path = folder / "photo.png"
    path.write_bytes(encoded(array))
    return [path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), array, array / 255,
            Image.open(path), Image.fromarray(array), array.transpose(2, 0, 1)]  # fmt: skip


@pytest.fixture(scope="module", params=["backbone", "scratch"])
def classifier(request):
    if request.param == "backbone" and not WITH_BACKBONE:
        pytest.skip("the extra gradmix[photos] is not installed")
    model = "auto" if request.param == "backbone" else "mlp-small"
    X = [Image.fromarray(crop) for name in SCENES for crop in crops(name, 10)]
    made = IncrementalClassifier(
        model=model, image_size=32, holdout_per_class=2, epochs=30, random_state=0, threads=1
    )
    return made.partial_fit(X, np.repeat(list(SCENES), 10))


def test_photos_of_any_size_are_learned_from_a_list(classifier):
    X = [crop for name in SCENES for crop in crops(name, 8, seed=1)]
    assert classifier._learned.setup.given.shape == (3, 32, 32)
    assert classifier.score(X, np.repeat(list(SCENES), 8)) > 0.75


def test_an_array_of_paths_is_a_list_of_photos(classifier, tmp_path):
    paths = []
    for number, crop in enumerate(crops("china", 3, seed=2)):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(crop).save(paths[-1])
    expected = classifier.predict(paths).tolist()
    for given in (np.array(paths), np.array(paths, dtype=object)):
        assert classifier.predict(given).tolist() == expected


def test_every_form_of_a_photo_gives_the_same_answer(classifier, tmp_path):
    for photo in crops("flower", 4, seed=2):
        forms = kinds_of(photo, tmp_path)
        for use in (
            classifier.predict_proba,
            classifier.decision_function,
            classifier.embed,
            classifier.novelty,
        ):
            found = use(forms)
            assert len(found) == len(forms)
            np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), atol=1e-5)
        for form in (forms[0], forms[2], forms[3], forms[6], photo):  # alone, without a list
            np.testing.assert_allclose(
                classifier.predict_proba(form), classifier.predict_proba(forms)[:1], atol=1e-5
            )


def test_odd_files_are_predicted(classifier):
    photo = crops("flower", 1, seed=3)[0]
    turned = Image.Exif()
    turned[0x0112] = 6  # shown turned by 90 degrees
    grey16 = Image.fromarray(photo.mean(2).astype(np.uint16) * 256)
    deep = io.BytesIO()
    grey16.save(deep, "PNG")
    odd = [
        encoded(photo, mode="P"),
        encoded(photo, "JPEG", "CMYK"),
        encoded(np.rot90(photo).copy(), "JPEG", exif=turned),
        encoded(photo, "GIF", save_all=True, append_images=[Image.fromarray(255 - photo)]),
        encoded(photo, mode="RGBA"),
        encoded(photo, "WEBP"),
        deep,
        encoded(photo[:1, :1]),
        photo[:1, :1],
        photo[:, :, 0],
    ]
    assert set(classifier.predict(odd)) <= set(SCENES)
    assert classifier.predict(odd[:6]).tolist() == ["flower"] * 6


def test_folders_in_lists_stand_for_their_photos(classifier, tmp_path):
    for number, photo in enumerate(crops("china", 3, seed=4)):
        (tmp_path / f"{number}.png").write_bytes(encoded(photo))
    flower = crops("flower", 1, seed=4)[0]
    assert classifier.predict([flower, tmp_path]).tolist() == ["flower"] + ["china"] * 3
    assert classifier.predict(tmp_path).tolist() == ["china"] * 3
    with pytest.raises(InputError, match="requires y"):
        classifier.score(tmp_path)
    with pytest.raises(InputError, match="no class folders"):
        classifier.partial_fit(tmp_path)


def test_a_bad_photo_in_a_list_is_named_and_nothing_is_learned(classifier, tmp_path, digest):
    good = crops("china", 1)[0]
    before = digest(classifier)
    broken = encoded(good, "JPEG")[:-500]
    with pytest.raises(CorruptFileError, match=r"X\[2\]: .*truncated"):
        classifier.predict([good, encoded(good), broken])
    with pytest.raises(InputError, match=r"X\[1\] is a int; a photo is a path, bytes"):
        classifier.predict([encoded(good), 3])
    with pytest.raises(DataNotFoundError, match=r"none\.jpg: no such file"):
        classifier.predict([good, tmp_path / "none.jpg"])
    with pytest.raises(CorruptFileError, match=r"X\[0\]"):
        classifier.partial_fit([broken, good], ["a", "b"])
    with pytest.raises(InputError, match="2 labels for 3 samples"):
        classifier.partial_fit([good] * 2 + [broken[:0] or encoded(good)], ["a", "b"])
    assert digest(classifier) == before


def test_more_classes_are_learned_from_a_mixed_list(classifier, tmp_path):
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (50 + n, 90, 3)).astype(np.uint8) for n in range(8)]
    (tmp_path / "n.png").write_bytes(encoded(noise[0]))
    X = [tmp_path / "n.png", encoded(noise[1]), Image.fromarray(noise[2]), *noise[3:]]
    other = IncrementalClassifier(**classifier.get_params())
    other._take(classifier._learned)
    other.partial_fit(X, ["noise"] * 8, eval_set=(noise[:2], ["noise"] * 2))
    assert other.classes_.tolist() == ["china", "flower", "noise"]
    assert other.predict(noise[5:]).tolist() == ["noise"] * 3


def test_arrays_of_another_size_are_resized_to_what_was_learned(images, quick):
    X, y = images("a", "b", shape=(1, 8, 8))
    classifier = quick(epochs=1).fit(X, y)
    larger = X.repeat(2, axis=2).repeat(2, axis=3)
    assert classifier.predict_proba(larger).shape == (24, 2)
    colour = np.repeat(X, 3, axis=1)
    np.testing.assert_allclose(classifier.predict_proba(colour), classifier.predict_proba(X))
    classifier.partial_fit(larger, y)
    assert classifier._learned.setup.given.shape == (1, 8, 8)


def test_a_stack_of_grey_images_is_not_one_photo(images, quick):
    X, y = images("a", "b", shape=(1, 9, 4))
    classifier = quick(epochs=1).fit(X[:, 0], y)
    assert classifier.predict(X[:, 0]).shape == (24,)
