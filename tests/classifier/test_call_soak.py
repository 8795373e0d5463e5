"""Many calls with random new classes and extra data: budgets hold, nothing grows unasked."""

import gc
import json
import os
import resource

import numpy as np
import pytest

from gradmix import IncrementalClassifier

EACH, COLUMNS = 6, 20
MARGIN = 64 << 20  # bytes that the process may grow beyond the model


def samples(rng, centres, classes):
    y = np.repeat(classes, rng.integers(8, 30, size=len(classes)))
    return centres[y] + rng.normal(scale=0.6, size=(len(y), COLUMNS)), y


def predicted_size(classifier):
    """What a file must hold: weights, samples with label and priority, and some text."""
    learned = classifier._learned
    weights = sum(
        value.numel() * value.element_size()
        for network in learned.method.networks().values()
        for value in network.state_dict().values()
    )
    kept = len(learned.method.memory) + len(learned.holdout)
    return weights + kept * (4 * COLUMNS + 16)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize("calls", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_soak(tmp_path, calls, quick):
    rng = np.random.default_rng(0)
    total = 4 + calls // 4
    centres = rng.normal(scale=2, size=(total, COLUMNS))
    path = tmp_path / "my.gradmix"
    classifier = quick(epochs=3, exemplars_per_class=EACH, holdout_per_class=2, batch_size=16)
    known, accuracy, baseline = 0, [], None
    for call in range(calls):
        new = np.arange(known, min(known + int(rng.integers(1, 4)), total))
        if not len(new) or (known and rng.random() < 0.5):
            new = np.empty(0, dtype=int)
        known += len(new)
        old = rng.choice(known, size=min(known, 3), replace=False)
        classifier.partial_fit(*samples(rng, centres, np.union1d(new, old)))
        memory, holdout = classifier._learned.method.memory, classifier._learned.holdout
        assert memory.y.bincount().max() <= EACH - 2
        assert holdout.y.bincount().max() <= 2
        assert len(classifier.classes_) == known
        classifier.save(path)
        expected = predicted_size(classifier)
        extra = path.stat().st_size - expected
        text = len(json.dumps([report.model_dump() for report in classifier.history_]))
        assert 0 < extra < 60_000 + 1.5 * text, (call, extra)
        if call % 5 == 4:
            classifier = IncrementalClassifier.load(path)
            accuracy.append(classifier.score(*samples(rng, centres, np.arange(known))))
            gc.collect()
            baseline = resident() - expected if baseline is None else baseline
            assert resident() - expected - baseline < MARGIN
    print("accuracy over time:", *(f"{value:.2f}" for value in accuracy))  # noqa: T201
    assert accuracy[-1] > 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["my.gradmix"]
