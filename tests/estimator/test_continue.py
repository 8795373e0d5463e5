"""A call that was stopped and is made again goes on from its checkpoint, to the same bits."""

import random
from contextlib import suppress

import pytest
from estimator_cases import digest, quick, rows

from gradmix import IncrementalClassifier
from gradmix.estimator.call import Watch
from gradmix.training import checkpoint as checkpoints
from gradmix.training.loop import Training


class StoppedError(Exception):
    """In place of a crash."""


@pytest.mark.parametrize(
    ("method", "early"),
    [(name, False) for name in ("der", "mir", "memo", "icarl", "joint")]
    + [(name, True) for name in ("er", "foster")],
)
def test_faults_at_random_events(tmp_path, monkeypatch, method, early):
    chance = random.Random(method)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    note, events, said = checkpoints.Checkpoint.note, Training.events, []
    params = {
        "method": method,
        "mix": "mixup" if method == "joint" else "gradmix+",
        "epochs": 4,
        "early_stopping": early,
        "patience": 1,
        "holdout_per_class": 2,
        "exemplars_per_class": 8,
    }
    first, second = rows(0, 1, each=40), rows(1, 2, each=40, seed=1)
    start, path = tmp_path / "start", tmp_path / "f"
    quick(**params).partial_fit(*first).partial_fit(*rows(3)).save(start)

    def whole(checkpoint=None):
        classifier = IncrementalClassifier.load(start)
        data = classifier._data(classifier._learned, *second)
        return classifier._learn(classifier._learned, data, Watch(checkpoint, said.append))

    expected = digest(whole(tmp_path / "undisturbed"))
    monkeypatch.setattr(
        checkpoints.Checkpoint, "note", lambda *given: chance.random() < 0.5 and note(*given)
    )

    def failing(self):
        left = chance.randint(2, 6)
        for event in events(self):
            yield event
            left -= 1
            if not left:
                raise StoppedError

    monkeypatch.setattr(Training, "events", failing)
    ended, stops = None, -1
    while ended is None:
        stops += 1
        with suppress(StoppedError):
            ended = whole(path)
    assert stops >= 2
    assert all(text.startswith("resuming") for text in said)
    assert digest(ended) == expected
