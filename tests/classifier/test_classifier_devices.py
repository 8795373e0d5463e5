"""`devices=`: a call on several devices gives the classifier of one."""

import numpy as np
import pytest
import torch

from gradmix import IncrementalClassifier
from gradmix.errors import InputError


def rows(labels, seed=0):
    """Return 12 rows around each of some centres."""
    random = np.random.default_rng(seed)
    y = np.repeat(labels, 12)
    return random.normal(size=(len(y), 4)) + 4.0 * y[:, None], y


def test_devices_are_checked_before_any_work():
    classifier = IncrementalClassifier(devices=0)
    with pytest.raises(InputError, match="devices is 0; give a whole number of 1 or more"):
        classifier.fit(*rows([0, 1]))
    assert not hasattr(classifier, "classes_")


def test_files_do_not_store_the_devices(tmp_path):
    classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
    classifier.fit(*rows([0, 1])).set_params(devices=8).save(tmp_path / "model")
    assert IncrementalClassifier.load(tmp_path / "model").devices == 1


@pytest.mark.slow
def test_a_classifier_on_two_devices(tmp_path):
    """Both calls, the held-out samples, the report and the saved file agree with one device."""
    learned, events = [], []
    for devices in (1, 2):
        classifier = IncrementalClassifier(
            mix="gradmix+", model="mlp-small", epochs=3, random_state=0, devices=devices,
            holdout_per_class=2,
        )  # fmt: skip
        classifier.fit(*rows([0, 1]), callback=lambda event: None)
        classifier.partial_fit(*rows([2]), callback=events.append)
        classifier.save(tmp_path / f"on-{devices}")
        learned.append(classifier)
    one, two = learned
    x, _ = rows([0, 1, 2], seed=1)
    np.testing.assert_allclose(two.predict_proba(x), one.predict_proba(x), atol=1e-5)
    memories = [classifier._learned.method.memory for classifier in learned]
    assert torch.equal(memories[0].x, memories[1].x)
    assert one.report_.accuracy == two.report_.accuracy
    assert len(events) % 2 == 0
    again = IncrementalClassifier.load(tmp_path / "on-2").partial_fit(*rows([3]))  # on one device
    assert again.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_seed_that_is_drawn_is_the_same_on_all_devices():
    classifier = IncrementalClassifier(model="mlp-small", epochs=2, devices=2)
    assert classifier.fit(*rows([0, 1])).classes_.tolist() == [0, 1]  # ranks compare their state


@pytest.mark.slow
def test_what_cannot_be_sent_to_other_processes():
    classifier = IncrementalClassifier(model="mlp-small", epochs=1, devices=2)
    x, y = rows([0, 1])
    with pytest.raises(InputError, match="other processes cannot be started"):
        classifier.fit(_Unsendable(x), y)


class _Unsendable:
    """An array that cannot be pickled."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.x, dtype=dtype)

    def __reduce__(self):
        raise TypeError("it stays here")


def test_one_device_starts_no_processes(monkeypatch, quick):
    monkeypatch.setattr("gradmix.training.launch._started", None)
    assert quick(devices=1, epochs=1).fit(*rows([0, 1])).classes_.tolist() == [0, 1]
