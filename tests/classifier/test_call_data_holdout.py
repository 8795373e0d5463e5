"""Samples held out for measuring and for early stopping."""

import numpy as np
import pytest
import torch

import gradmix
from gradmix.classifier.call_data import equal_held_out
from gradmix.errors import DataWarning
from gradmix.memory import ReplayMemory
from gradmix.training.loop import Training
from gradmix.types import Samples


def test_what_is_held_out_is_never_trained_on(monkeypatch, quick, rows):
    X, y = rows(0, 1, 2)
    X[:, 3] = np.arange(len(X))  # tells samples apart
    trained = []
    begin = Training._learn

    def note(self, task):
        trained.append(task.train.x[:, 3].tolist())
        return begin(self, task)

    monkeypatch.setattr(Training, "_learn", note)
    classifier = quick(epochs=1, holdout_per_class=4)
    classifier.partial_fit(X[:40], y[:40])
    classifier.partial_fit(X[40:], y[40:])
    held = classifier._learned.holdout.x[:, 3].tolist()
    memory = classifier._learned.method.memory.x[:, 3].tolist()
    assert len(held) == 12
    assert not set(held) & {row for rows_ in trained for row in rows_}
    assert not set(held) & set(memory)
    classifier.partial_fit(X[:20] + 1000, y[:20])  # may take places in the holdout
    assert len(classifier._learned.holdout) == 12


def test_early_stopping_stops_at_the_best_epoch_and_gives_exemplars_back(quick, rows):
    X, y = rows(0, 1)
    classifier = quick(epochs=100, early_stopping=True, patience=3, lr=0.05).fit(X, y)
    assert classifier.report_.stopped_early
    assert classifier.report_.epochs < 100
    classifier.partial_fit(*rows(2))
    assert classifier._learned.method.memory.y.bincount().tolist() == [18, 18, 18]
    assert classifier.score(*rows(0, 1, 2, seed=1)) > 0.9
    forever = quick(epochs=3, early_stopping=True, patience=50).fit(X, y)
    assert (forever.report_.epochs, forever.report_.stopped_early) == (3, False)


@pytest.mark.parametrize("memory", [{"exemplars_per_class": 1}, {"memory_total": 4}], ids=str)
def test_early_stopping_with_no_exemplar_to_spare(memory, quick, rows):
    if "memory_total" in memory:
        memory = {**memory, "exemplars_per_class": None}
    classifier = quick(early_stopping=True, **memory).partial_fit(*rows(0, 1, 2))
    classifier.partial_fit(*rows(3))
    assert classifier._learned.method.memory.y.bincount().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("saved", [False, True])
def test_photos_that_are_given_again_stay_held_out(saved, tmp_path, images):
    X, y = images("cat", "dog")
    params = {"model": "cnn", "epochs": 1, "holdout_per_class": 3, "random_state": 0}
    classifier = gradmix.IncrementalClassifier(**params).partial_fit(X, y)
    held = classifier._learned.holdout.x.clone()
    if saved:
        classifier.save(tmp_path / "f")
        classifier = gradmix.IncrementalClassifier.load(tmp_path / "f")
    with pytest.warns(
        DataWarning, match="6 images not learned: copies of images that an earlier call holds out"
    ):
        classifier.partial_fit(X, y)
    assert torch.equal(classifier._learned.holdout.x, held)
    assert "6 images not learned" in classifier.report_.warnings[-1]
    learned = {row.tobytes() for row in classifier._learned.method.memory.x.numpy()}
    assert not learned & {row.tobytes() for row in held.numpy()}


def test_copies_of_held_out_photos_are_not_learned(images):
    X, y = images("cat", "dog")
    params = {"model": "cnn", "epochs": 1, "holdout_per_class": 3, "random_state": 0}
    classifier = gradmix.IncrementalClassifier(**params)
    with pytest.warns(DataWarning, match="images not learned: copies of images that are held out"):
        classifier.fit(np.concatenate([X, X]), [*y, *y])
    learned = {row.tobytes() for row in classifier._learned.method.memory.x.numpy()}
    assert not learned & {row.tobytes() for row in classifier._learned.holdout.x.numpy()}


def test_a_class_of_which_all_photos_are_held_out_already_is_learned(images):
    X, y = images("cat", "dog")
    params = {"model": "cnn", "epochs": 1, "holdout_per_class": 3, "random_state": 0}
    classifier = gradmix.IncrementalClassifier(**params).partial_fit(X, y)
    again = classifier._learned.holdout.samples
    cats = again.x[again.y == 0].numpy()
    classifier.partial_fit(cats, ["cat"] * len(cats))
    assert classifier.report_.warnings == []


def test_equal_samples_are_found_by_class_and_up_to_rounding():
    holdout = ReplayMemory(exemplars_per_class=2)
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
    holdout.add(Samples(x, y), torch.tensor([0.1, 0.2]))
    given = torch.tensor([[1.0005, 2.0], [1.0, 2.0], [1.1, 2.0], [3.0, 4.0]])
    labels = torch.tensor([0, 1, 0, 1])
    assert equal_held_out(Samples(given, labels), holdout).tolist() == [True, False, False, True]
