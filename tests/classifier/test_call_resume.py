"""A stopped call resumes from its checkpoint, with identical results."""

import random
from contextlib import suppress
from operator import methodcaller

import pytest
import torch

from gradmix import IncrementalClassifier
from gradmix.classifier.report import Observer
from gradmix.training import checkpoint as checkpoints
from gradmix.training.loop import Training


class StoppedError(Exception):
    """In place of a crash."""


@pytest.mark.parametrize(
    ("method", "early"),
    [(name, False) for name in ("der", "mir", "memo", "icarl", "joint")]
    + [(name, True) for name in ("er", "foster")],
)
def test_faults_at_random_events(tmp_path, monkeypatch, method, early, digest, quick, rows):
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
        observer = Observer(said.append)
        classifier._learn(
            methodcaller("read_call", *second), observer, checkpoint and str(checkpoint)
        )
        return classifier

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
    assert sum(text.startswith("resuming") for text in said) == stops
    assert digest(ended) == expected


class OnlyOnce(Exception):  # noqa: N818
    """In place of Ctrl-C."""


def stopped_after(number, monkeypatch):
    """Let the next training stop after so many events, and the ones after that not."""
    events = Training.events

    def failing(self):
        for count, event in enumerate(events(self)):
            yield event
            if count == number:
                raise OnlyOnce

    monkeypatch.setattr(Training, "events", failing)
    return lambda: monkeypatch.setattr(Training, "events", events)


def test_a_first_call_without_a_seed_goes_on_with_the_one_it_drew(
    tmp_path, monkeypatch, quick, rows
):
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    classifier, resumed = quick(random_state=None, epochs=4), []
    resume = checkpoints.Checkpoint.resume
    monkeypatch.setattr(
        checkpoints.Checkpoint, "resume", lambda self: resumed.append(resume(self)) or resumed[-1]
    )
    mend = stopped_after(3, monkeypatch)
    with pytest.raises(OnlyOnce):
        classifier.partial_fit(*rows(0, 1), checkpoint=tmp_path / "f")
    mend()
    classifier.partial_fit(*rows(0, 1), checkpoint=tmp_path / "f")
    assert resumed == [False, True]


def test_dropout_is_the_same_for_the_same_seed_and_after_a_stop(
    tmp_path, monkeypatch, digest, quick, rows
):
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)

    def network():
        torch.manual_seed(3)
        layers = torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2)
        return torch.nn.Sequential(*layers)

    def learned(outside, **given):
        classifier = quick(model=network(), epochs=4)
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        classifier.partial_fit(*rows(0, 1), **given)
        assert torch.equal(torch.get_rng_state(), before)
        return digest(classifier)

    assert learned(1) == learned(2)
    expected = learned(5, checkpoint=tmp_path / "undisturbed")
    mend = stopped_after(2, monkeypatch)
    with pytest.raises(OnlyOnce):
        learned(3, checkpoint=tmp_path / "f")
    mend()
    assert learned(4, checkpoint=tmp_path / "f") == expected
