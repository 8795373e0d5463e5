"""What cannot be used: a clear error of a documented type, and nothing has changed."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from gradmix import IncrementalClassifier
from gradmix.errors import DataNotFoundError, DivergedError, GradMixError, InputError

X = np.random.default_rng(0).normal(scale=0.3, size=(40, 4))
X += 3 * np.repeat([[6, 2, 1, 1], [0, 3, 2, 1]], 20, axis=0)  # two blobs, far apart
Y = np.repeat(["a", "b"], 20)
PICTURES = np.random.default_rng(0).integers(0, 256, (24, 3, 16, 16)).astype(np.uint8)
NAMES = np.repeat(["a", "b"], 12)
NOTHING = np.empty((0, 4))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def changed(array, value, row=3):
    array = array.astype(float)
    array[row, 1] = value
    return array


BAD_ROWS = {
    "NaN": (changed(X, np.nan), Y, r"^X contains NaN; replace .* remove their rows$"),
    "infinite": (changed(X, np.inf), Y, "^X contains infinity .*; replace"),
    "too large for float32": (changed(X, 1e300), Y, "infinity|too large"),
    "no samples": (NOTHING, [], "0 sample"),
    "no columns": (np.empty((5, 0)), Y[:5], r"0 feature\(s\)"),
    "one dimension": (X[0], Y[:4], "X: Expected 2D array"),
    "a number": (3.0, Y, "2D array|array"),
    "None": (None, Y, "array|None"),
    "text in cells": (
        np.array([["x", "y"]] * 5),
        ["a"] * 5,
        "^X has text .*; encode it as numbers",
    ),
    "complex": (X.astype(complex), Y, "[Cc]omplex"),
    "ragged": ([[1.0, 2.0], [3.0]], ["a", "b"], "sequence|inhomogeneous"),
    "other columns": (X[:, :3], Y, "3 features, but .* expecting 4"),
    "images for rows": (PICTURES, NAMES, r"X has shape \(.*, 3, 16, 16\); .* rows of 4 numbers"),
    "three dimensions": (np.zeros((5, 2, 2)) - 1, Y[:5], r"^X has shape \(5, 2, 2\); .*\(N, 4\)$"),
    "five dimensions": (np.zeros((2, 3, 4, 5, 6)), Y[:2], r"X has shape \(2, 3, 4, 5, 6\)"),
    "a file for rows": ("photos", None, r"rows of \d+ numbers"),
    "no labels": (X, None, "requires y"),
    "fewer labels": (X, Y[:-1], "39 labels for 40"),
    "more labels": (X, [*Y, "a"], "41 labels for 40"),
    "labels of two dimensions": (X, np.stack([Y, Y], axis=1), "1d array|shape"),
    "fractions as labels": (X, np.linspace(0, 1, 40), "Unknown label type"),
    "NaN as label": (X, [np.nan] + [1.0] * 39, "NaN"),
    "labels of several kinds": (X, ["a", 1] * 20, "mixes text and other types"),
    "objects as labels": (X, [object()] * 40, "type"),
    "None as labels": (X, [None] * 40, "type|None"),
    "dates as labels": (X, np.array(["2026-01-01"] * 40, dtype="datetime64[D]"), "type"),
    "other kind of labels": (X, np.arange(40) % 2, "integers as labels"),
    "booleans for text": (X, np.arange(40) % 2 == 0, "booleans as labels"),
}
BAD_IMAGES = {
    "too thin": (PICTURES[:, :, :1].repeat(150, 3), NAMES, r"X\[0\]: .* too long and thin"),
    "two channels": (PICTURES[:, :2], NAMES, "1, 3 or 4 channels"),
    "not bytes": (PICTURES.astype(int) * 2, NAMES, "0 to 255"),
    "negative": (-PICTURES.astype(int), NAMES, "0 to 255"),
    "floats that are no bytes": (PICTURES / 300, NAMES, "not bytes divided by 255"),
    "NaN in images": (np.full((4, 3, 16, 16), np.nan), list("abab"), "X contains NaN"),
    "no images": (PICTURES[:0], [], "at least one"),
    "no pixels": (np.zeros((4, 3, 0, 16), dtype=np.uint8), list("abab"), "at least one"),
    "sparse images": (torch.from_numpy(PICTURES).to_sparse(), NAMES, "dense tensor"),
    "rows for images": (X, Y, "does not contain images"),
    "ragged images": ([PICTURES[0].tolist(), [[[1]]]], ["a", "b"], "rectangular|inhomogeneous"),
    "no such folder": ("/nowhere/at/all", None, "no such file or folder"),
    "a stream": (Stream(), None, "map-style"),
    "an empty dataset": (TensorDataset(torch.empty(0, 3, 16, 16), torch.empty(0)), None, "empty"),
    "labels twice": (TensorDataset(torch.zeros(2, 3, 16, 16), torch.tensor([0, 1])), [0, 1], "own"),
    "sizes that differ": (
        [(torch.zeros(3, 16, 16), 0), (torch.zeros(3, 8, 8), 1)],
        None,
        "requires y|rectangular|inhomogeneous|sequence",
    ),
}
BAD_PARAMS = [
    *({"method": value} for value in ("err", None, 3)),
    *({"mix": value} for value in ("gradmixx", None, "a:b:c")),
    *({"model": value} for value in ("resnet", None, torch.nn.ReLU())),
    *({"epochs": value} for value in (0, -1, 2.5, "3", True, 10**30)),
    {"threads": 10**5},
    {"device": "tpu"},
    {"device": "cpu:0"},
    {"mean": 5},
    {"lr": 1e300},
    {"transforms": [["crop"]]},
    *({"lr": value} for value in (0, -1.0, float("nan"), float("inf"), "x")),
    *({"momentum": value} for value in (1.0, -0.1, None)),
    *({"exemplars_per_class": value} for value in (0, None, 1.5)),
    {"memory_total": 3, "holdout_per_class": 1},
    {"memory_total": 1},
    {"holdout_per_class": 32},
    {"holdout_per_class": -1},
    {"head_size": 1},
    {"head_size": 0},
    {"head_size": 10, "method": "foster"},
    *({"batch_size": value} for value in (0, None, 1.5)),
    {"replay_batch_size": 0},
    *({"tau": value} for value in (-0.1, 1.1)),
    {"alpha": 0},
    *({"tables": value} for value in (0, 1025, 2**31)),
    *({"options": value} for value in ({"beta": 1}, [1], {"x": "y"})),
    *({"transforms": value} for value in ("crop", ["turn"], 3, ["crop"])),
    *({"lr_steps": value} for value in ((0,), "5", (1.5,))),
    {"image_size": 4},
    *({"mean": value} for value in ([0.0], [np.nan] * 4)),
    *({"std": value} for value in ([0.0] * 4, [1.0])),
    {"early_stopping": 1},
    {"patience": 0},
    *({"validation_fraction": value} for value in (0, 0.9, None)),
    {"pairing": "some"},
    {"average": "mean"},
    {"precision": "8"},
    {"device": "cuda:x"},
    {"device": None},
    {"threads": 0},
    *({"random_state": value} for value in (-1, "x", 1.5)),
    {"method": "joint", "mix": "gradmix+"},  # which has no memory for it
]


@pytest.fixture(scope="module")
def of_rows(quick):
    return quick(epochs=1).partial_fit(X, Y)


@pytest.fixture(scope="module")
def of_images(quick):
    return quick(epochs=1).partial_fit(PICTURES, NAMES)


@pytest.fixture(scope="session")
def refused(digest):
    def refused(classifier, bad, labels, match):
        before, shown = digest(classifier), dict(vars(classifier))
        with pytest.raises((GradMixError, TypeError), match=f"(?s){match}"):
            classifier.partial_fit(bad, labels)
        assert digest(classifier) == before
        assert vars(classifier) == shown

    return refused


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows(of_rows, case, refused):
    refused(of_rows, *BAD_ROWS[case])


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_images(of_images, case, refused):
    refused(of_images, *BAD_IMAGES[case])


def test_sparse_rows(of_rows):
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        of_rows.predict(csr_matrix(X))


@pytest.mark.parametrize("params", BAD_PARAMS, ids=str)
def test_parameters(params, quick):
    classifier = quick(**params)
    with pytest.raises(InputError):
        classifier.partial_fit(X, Y)
    assert not hasattr(classifier, "classes_")


@pytest.mark.parametrize(
    "params",
    [
        *({"method": "der"}, {"model": "mlp"}, {"head_size": 5}, {"exemplars_per_class": 8}),
        *({"holdout_per_class": 2}, {"mean": [0.0] * 4}, {"image_size": 9}, {"memory_total": 64}),
    ],
    ids=str,
)
def test_parameters_that_cannot_change_between_calls(of_rows, params, quick, refused):
    classifier = quick(**{**of_rows.get_params(), **params})
    classifier._take(of_rows._learned)
    refused(classifier, X, Y, "start again: fit")


def test_a_class_that_was_not_announced(quick, rows, refused):
    classifier = quick(epochs=1).partial_fit(X, Y, classes=["a", "b", "c"])
    refused(classifier, *rows("d"), "'d', which was not announced")
    classifier.partial_fit(*rows("d"), classes=["a", "b", "c", "d"])
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]


def test_statistics_of_images_are_in_bytes(quick):
    floats = PICTURES / 255
    given = {"mean": [float(floats.mean())] * 3, "std": [float(floats.std())] * 3}
    with pytest.raises(InputError, match="multiply both by 255"):
        quick(epochs=1, **given).partial_fit(floats, NAMES)
    scaled = {name: [255 * number for number in numbers] for name, numbers in given.items()}
    quick(epochs=1, **scaled).partial_fit(floats, NAMES)


@pytest.mark.parametrize(
    "bad", [{"a": 1}, {1.0}, iter([[0.0]]), DataLoader([(X[0], 1)])], ids=lambda x: type(x).__name__
)
def test_what_is_no_array(of_rows, bad, refused):
    with pytest.raises(InputError, match="give an array"):
        of_rows.predict(bad)
    refused(of_rows, bad, Y, "give an array")


def test_bfloat16_is_read_like_other_floats(quick):
    labels = torch.tensor([0, 1] * 20).bfloat16()
    classifier = quick(epochs=1).fit(torch.from_numpy(X).bfloat16(), labels)
    assert classifier.classes_.tolist() == [0, 1]


def test_the_last_step_may_diverge(quick):
    classifier = quick(lr=1e30, epochs=1, batch_size=64)
    with pytest.raises(DivergedError, match="lr below"):
        classifier.partial_fit(X, Y)
    assert not hasattr(classifier, "classes_")


def test_classes_that_do_not_fit(of_rows, quick, rows, refused):
    for classes in (["a"], [1, 2], ["b", "c"]):
        with pytest.raises(InputError, match="classes"):
            of_rows.partial_fit(X, Y, classes=classes)
    full = quick(head_size=2, epochs=1).partial_fit(X, Y)
    refused(full, *rows("c"), "head_size is 2")


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ((X, Y[:3]), "eval_set's y has 3 labels"),
        ((X, np.array(["c"] * 40)), "never learned"),
        ((X[:, :2], Y), "eval_set's X: .* 2 features"),
        (X, "requires y to be passed, but the target eval_set's y is None"),
        ("/nowhere", r"rows of \d+ numbers"),
    ],
)
def test_eval_sets(of_rows, bad, match, digest):
    before = digest(of_rows)
    with pytest.raises(InputError, match=match):
        of_rows.partial_fit(X, Y, eval_set=bad)
    assert digest(of_rows) == before


def test_labels_are_checked_before_anything_is_predicted(monkeypatch, of_rows, rows):
    def fail(self, x):
        raise AssertionError("predicted")

    monkeypatch.setattr("gradmix.classifier.state.Learned.scores", fail)
    X, y = rows(0)
    with pytest.raises(InputError, match="y has"):
        of_rows.score(X, y[:-1])


def test_scores_of_unknown_classes_are_refused(of_rows):
    with pytest.raises(InputError, match="'z', which was never learned; known are 'a', 'b'"):
        of_rows.score(X, ["z"] * 40)
    with pytest.raises(InputError, match="integers as labels"):
        of_rows.score(X, [0] * 40)


def test_before_anything_is_learned(tmp_path, quick):
    classifier = quick()
    for use in (
        lambda: classifier.predict(X),
        lambda: classifier.predict_proba(X),
        lambda: classifier.score(X, Y),
        lambda: classifier.save(tmp_path / "f"),
        lambda: classifier.forget("a"),
    ):
        with pytest.raises(NotFittedError):
            use()
    assert not list(tmp_path.iterdir())


def test_forgetting_what_is_not_known_or_the_last(of_rows, digest, quick, rows):
    before = digest(of_rows)
    with pytest.raises(InputError, match="known classes are"):
        of_rows.forget("z")
    assert digest(of_rows) == before
    one = quick(epochs=1).partial_fit(*rows("a"))
    with pytest.raises(InputError, match="the last class that is left"):
        one.forget("a")


def test_files_of_images_that_are_none(of_images, tmp_path, quick):
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8 no picture")
    with pytest.raises(GradMixError, match=r"x\.jpg"):
        of_images.predict([tmp_path / "x.jpg"])
    with pytest.raises(DataNotFoundError, match=r"y\.jpg"):
        of_images.predict([tmp_path / "y.jpg"])
    (tmp_path / "photos" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="class folder is empty"):
        of_images.partial_fit(tmp_path / "photos")
    with pytest.raises(GradMixError, match=r"x\.jpg"):
        quick().partial_fit([tmp_path / "x.jpg"], ["a"])


anything = st.one_of(
    arrays.arrays(
        st.sampled_from([np.float64, np.int64, np.uint8, np.bool_, "U2", object]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none()), max_size=6),
    st.one_of(st.none(), st.booleans(), st.text(max_size=4), st.binary(max_size=4)),
)


@settings(max_examples=60)
@given(bad=anything, labels=anything)
@pytest.mark.filterwarnings("ignore")
def test_anything_at_all(digest, quick, of_rows, bad, labels):
    """Whatever it is: a documented error and no change, or it was learned."""
    classifier = quick(epochs=1)
    classifier._take(of_rows._learned)
    before = digest(classifier)
    try:
        classifier.partial_fit(bad, labels)
    except (GradMixError, TypeError):
        assert digest(classifier) == before
    for use in (classifier.predict, classifier.predict_proba):
        with suppress(GradMixError, TypeError):
            use(bad)


def test_there_are_enough_kinds():
    assert len(BAD_ROWS) + len(BAD_IMAGES) + len(BAD_PARAMS) >= 60
    assert IncrementalClassifier().get_params()  # and defaults need nothing
