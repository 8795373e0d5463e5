"""What an application sees of the classifier."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from gradmix import IncrementalClassifier
from gradmix.errors import DataWarning, InputError
from gradmix.methods import METHODS

TRAINED = [name for name, info in METHODS.items() if info.build.trains]

WITHOUT_GRADIENTS = [name for name, info in METHODS.items() if not info.build.replays]


@pytest.fixture(scope="module")
def learned(quick, digit_samples):
    """Three calls on the digits, with some of each held out."""
    classifier = quick(mix="gradmix+", epochs=30, holdout_per_class=8, exemplars_per_class=24)
    for low, high in ((0, 4), (4, 8), (7, 10)):
        X, y = digit_samples(low, high)
        rows = (y != 7) | (np.cumsum(y == 7) % 2 == low % 2)  # other samples of 7 in each call
        classifier.partial_fit(X[rows], y[rows])
    return classifier


def test_it_learns_and_does_not_forget(learned, digit_samples):
    assert learned.classes_.tolist() == list(range(10))
    assert learned.score(*digit_samples(0, 10, "test")) > 0.85
    assert learned.report_.forgotten < 0.2
    X, _ = digit_samples(0, 10, "test")
    shares = learned.predict_proba(X)
    assert shares.shape == (len(X), 10)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (learned.classes_[shares.argmax(axis=1)] == learned.predict(X)).all()


@pytest.mark.parametrize("numbers", [1, 64 * 7, 2**30])
def test_predictions_do_not_depend_on_how_many_are_made_at_a_time(
    learned, monkeypatch, numbers, digit_samples
):
    X, _ = digit_samples(0, 10, "test")
    expected = learned.predict_proba(X)
    monkeypatch.setattr("gradmix.classifier.state.PREDICT_NUMBERS", numbers)
    np.testing.assert_allclose(learned.predict_proba(X), expected, atol=1e-5)


def test_the_report_says_what_happened(learned):
    report = learned.report_
    assert (report.call, report.new, report.more) == (3, [8, 9], [7])
    assert report.measured_on == "holdout"
    assert [row[0] for row in report.accuracy] == list(range(10))
    assert all(row[1] is None for row in report.accuracy[8:])
    assert all(0 <= row[1] <= 1 for row in report.accuracy[:8])
    assert report.held_out == 80
    assert report.memory == 10 * 16  # what is held out counts in the budget
    text = str(report)
    assert "2 new classes (8, 9), more of 7" in text
    assert "class pairs avoided" in text
    assert "accuracy lost on earlier classes" in text
    first = learned.history_[0]
    assert first.avoided_share is None  # nothing to protect yet
    assert first.forgotten is None


def test_avoided_pairs_are_of_known_classes_with_shares(learned):
    report = learned.report_
    assert report.avoided
    for a, b, share in report.avoided:
        assert {a, b} <= set(range(10))
        assert 0 < share <= 1
    assert 0 < report.avoided_share < 1


def test_without_anything_to_measure_on_it_says_so(quick, rows):
    report = quick().fit(*rows(0, 1)).report_
    assert report.measured_on is None
    assert report.after is report.forgotten is None
    assert "forgetting are unknown" in str(report)
    assert "eval_set" in str(report)


def test_eval_set_is_measured_before_and_after(quick, rows):
    classifier = quick(epochs=20).partial_fit(*rows("a", "b"), eval_set=rows("a", "b", seed=1))
    assert [row[1:] for row in classifier.report_.accuracy] == [(None, 1.0, 20)] * 2
    classifier.partial_fit(*rows("c"), eval_set=rows("a", "c", seed=1))
    names = [(name, before) for name, before, _, _ in classifier.report_.accuracy]
    assert names == [("a", 1.0), ("c", None)]


@pytest.mark.parametrize(
    ("labels", "dtype"), [(["x", "yy"], "U"), ([3, -1], "i"), ([False, True], "b")]
)
def test_labels_of_every_kind(labels, dtype, tmp_path, quick, rows):
    X, y = rows(0, 1)
    y = np.array(labels)[y]
    classifier = quick(epochs=10).fit(X, y)
    assert classifier.classes_.dtype.kind == dtype
    assert classifier.classes_.tolist() == sorted(labels)
    assert (classifier.predict(X) == y).mean() > 0.9
    classifier.save(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f")
    assert again.predict(X).dtype.kind == dtype
    assert (again.predict(X) == classifier.predict(X)).all()


def test_one_class_at_a_time_and_one_sample(quick):
    classifier = quick(epochs=20)
    with pytest.warns(DataWarning, match="class 'a' has 1 sample so far"):
        classifier.partial_fit([[0.0, 1.0]], ["a"])
    assert classifier.predict([[5.0, 5.0]]).tolist() == ["a"]
    X = np.random.default_rng(0).normal(size=(30, 2))
    classifier.partial_fit(X + 6, ["b"] * 30)
    classifier.partial_fit(X - 6, ["c"] * 30)
    assert classifier.predict([[-6.0, -6.0]]).tolist() == ["c"]
    assert len(classifier._learned.method.memory) == 1 + 30 + 30
    assert "class 'a' has 1 sample so far" in classifier.history_[0].warnings[0]


def test_heavy_imbalance(quick, rows):
    many, few = rows("many", each=600), rows("few", each=6, seed=1)
    X, y = (np.concatenate(parts) for parts in zip(many, few, strict=True))
    classifier = quick(epochs=5).fit(X, y)
    assert classifier.score(*rows("few", seed=2)) > 0.9
    assert classifier.score(*rows("many", seed=2)) > 0.9


@pytest.mark.parametrize("shape", [(28, 28), (1, 9, 13), (3, 16, 16), (17, 20, 3), (4, 16, 16)])
def test_images_of_any_size(shape, images, quick):
    X, y = images("a", "b", shape=shape, each=6)
    model = "mlp-small" if 28 in shape or 9 in shape else "resnet18-tiny"
    classifier = quick(epochs=1, model=model).fit(X, y)
    assert classifier.predict(X).shape == (12,)
    assert classifier.n_features_in_ == np.prod(shape)


def test_tensors_arrays_lists_floats_and_datasets_are_the_same(digest, images, quick):
    X, y = images(0, 1, shape=(1, 9, 9))
    expected = digest(quick().fit(X, y))
    for other in (
        torch.from_numpy(X),
        X.astype(np.int64),
        X.astype(np.float32) / 255,
        X.transpose(0, 2, 3, 1),
        X[:, 0],
        X.tolist(),
    ):
        assert digest(quick().fit(other, y)) == expected
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    assert digest(quick().fit(dataset)) == expected


class NamedItems(TensorDataset):
    classes = ("cat", "dog")


def test_datasets_with_names_have_these_as_labels(images, quick):
    X, y = images(0, 1)
    items = NamedItems(torch.from_numpy(X), torch.from_numpy(y))
    classifier = quick(epochs=1).fit(items)
    assert classifier.classes_.tolist() == ["cat", "dog"]
    assert classifier.score(items) == classifier.score(X, np.array(["cat", "dog"])[y])
    for wrong in (-1, 2):
        items = NamedItems(torch.from_numpy(X), torch.full((len(y),), wrong))
        with pytest.raises(InputError, match=rf"X\[0\] has the label {wrong}.*2 classes"):
            quick().fit(items)


@pytest.fixture(scope="session")
def photos(images):
    def photos(folder, *classes, each=6, side=20):
        for name in classes:
            (folder / name).mkdir(parents=True)
            for k, pixels in enumerate(images(name, each=each, shape=(side, side, 3))[0]):
                Image.fromarray(pixels).save(folder / name / f"{k}.png")
        return folder

    return photos


def test_folders_of_images(tmp_path, without_backbone, quick, photos):
    first = photos(tmp_path / "first", "cat", "dog")
    classifier = quick(epochs=1, model="auto").partial_fit(first)
    assert classifier.classes_.tolist() == ["cat", "dog"]
    assert classifier._learned.setup.layout.shape == (3, 20, 20)
    classifier.partial_fit(str(photos(tmp_path / "second", "emu", side=50)))  # resized
    assert classifier.classes_.tolist() == ["cat", "dog", "emu"]
    files = sorted(Path(first).glob("*/*.png"))
    assert len(classifier.predict(files)) == 12
    assert classifier.predict(files[0]).shape == (1,)
    assert 0 <= classifier.score(first) <= 1
    large = quick(epochs=1, image_size=16).fit(photos(tmp_path / "third", "a", "b", side=99))
    assert large._learned.setup.layout.shape == (3, 16, 16)


def test_a_folder_with_parts_is_learned_from_one_and_measured_on_the_other(tmp_path, quick, photos):
    photos(tmp_path / "all" / "train", "cat", "dog", each=9)
    photos(tmp_path / "all" / "test", "cat", "dog", each=4)
    classifier = quick(epochs=1).partial_fit(tmp_path / "all", eval_set=tmp_path / "all")
    assert classifier.report_.samples == 18
    assert [row[3] for row in classifier.report_.accuracy] == [4, 4]
    assert len(classifier.predict(tmp_path / "all")) == 8


def test_more_of_known_classes_renews_the_memory_fairly(quick, rows):
    """Of 20 samples and then 60 more, about a fourth of what is kept is of the first."""
    shares = []
    for seed in range(12):
        classifier = quick(epochs=1, exemplars_per_class=16, random_state=seed)
        X, y = rows(0, 1)
        classifier.partial_fit(X, y)
        classifier.partial_fit(rows(0, each=60, seed=1)[0] + 100, [0] * 60)
        x, y = classifier._learned.method.memory.samples
        assert y.bincount().tolist() == [16, 16]
        shares.append(float((x[y == 0] < 50).all(dim=1).float().mean()))
    assert 0.15 < np.mean(shares) < 0.35


def test_the_budget_holds_in_all(quick, rows):
    classifier = quick(epochs=1, exemplars_per_class=None, memory_total=30, holdout_per_class=2)
    for classes in ((0, 1), (2, 3, 4), (1, 5)):
        classifier.partial_fit(*rows(*classes))
        known = len(classifier.classes_)
        assert classifier.report_.memory == 30 - 2 * known
        assert classifier.report_.held_out == 2 * known


def test_forgetting_a_class_keeps_the_warnings_of_others(quick, rows):
    X, y = rows(0, 1, 11)
    with pytest.warns(DataWarning):
        classifier = quick().partial_fit(X[:41], y[:41])  # one sample of class 11
    classifier.forget(1)
    assert [text for text in classifier.report_.warnings if text.startswith("class 11 has")]


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_learns_forgets_and_goes_on(method, tmp_path, digest, quick, rows):
    mix = "mixup" if method in WITHOUT_GRADIENTS else "gradmix+"
    classifier = quick(method=method, mix=mix, exemplars_per_class=8, early_stopping=True)
    classifier.partial_fit(*rows(0, 1)).partial_fit(*rows(2, 1, 3)).partial_fit(*rows(0))
    assert classifier.predict_proba(rows(0)[0]).shape == (20, 4)
    for label in (1, 3):
        classifier.forget(label)
        classifier.save(tmp_path / "f")
        again = IncrementalClassifier.load(tmp_path / "f")
        assert digest(again) == digest(classifier)
        more = rows(5 + label, 0)
        assert digest(again.partial_fit(*more)) == digest(classifier.partial_fit(*more))
    assert classifier.classes_.tolist() == [0, 2, 6, 8]
    assert np.isfinite(classifier.predict_proba(rows(0)[0])).all()


def test_a_network_of_ones_own(tmp_path, digest, quick, rows):
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
    weights = network[0].weight.clone()
    classifier = quick(model=network, epochs=10).fit(*rows(0, 1))
    classifier.partial_fit(*rows(2))
    assert torch.equal(network[0].weight, weights)
    classifier.save(tmp_path / "f")
    with pytest.raises(InputError, match="pass it as model="):
        IncrementalClassifier.load(tmp_path / "f")
    again = IncrementalClassifier.load(tmp_path / "f", model=network)
    assert digest(again) == digest(classifier)
    assert digest(again.partial_fit(*rows(3))) == digest(classifier.partial_fit(*rows(3)))


@pytest.mark.parametrize("method", ["er", "icarl"])
def test_predictions_go_on_in_threads_while_it_learns(method, quick, rows):
    X, y = rows(0, 1)
    classifier = quick(method=method, epochs=10).partial_fit(X, y)
    before = classifier.predict_proba(X)
    wrong, counts = [], [0] * 3
    over = threading.Event()

    def ask(number):
        while not over.is_set():
            shares = classifier.predict_proba(X)
            counts[number] += 1
            if shares.shape[1] == 2 and not np.allclose(shares, before):
                wrong.append(shares)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    classifier.partial_fit(*rows(2))
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert min(counts) > 0
