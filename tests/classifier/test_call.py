"""One call: checks before training, errors, and warnings about the data."""

import numpy as np
import pytest
import torch

from gradmix.errors import DataWarning, InputError
from gradmix.training.loop import Training


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([torch.nn.Linear(5, 3)], r"model cannot take samples of shape \(4,\): RuntimeError: mat1"),
        (
            [torch.nn.Linear(4, 3), torch.nn.Flatten(0)],
            r"model returns shape \(4,\) for 2 samples; .* \(2, 2\)",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_training(layers, message, quick, rows):
    classifier = quick(model=torch.nn.Sequential(*layers))
    with pytest.raises(InputError, match=message):
        classifier.fit(*rows(0, 1))
    assert not hasattr(classifier, "classes_")


class FromFirstBatch(torch.nn.Module):
    """Sets itself by the first batch it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("begun", torch.tensor(False))
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x):
        if not self.begun:
            self.mean.copy_(x.mean(0))
            self.begun.fill_(True)
        return self.last(x - self.mean)


def test_looking_whether_a_network_fits_changes_nothing(monkeypatch, digest, quick, rows):
    network = FromFirstBatch()
    looked = quick(model=network, epochs=2).fit(*rows(0, 1))
    monkeypatch.setattr("gradmix.classifier.call.check_takes", lambda *_: None)
    assert digest(looked) == digest(quick(model=network, epochs=2).fit(*rows(0, 1)))


class StoppedError(Exception):
    """In place of whatever may go wrong."""


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("method", ["er", "foster", "icarl"])
def test_a_call_that_fails_changes_nothing(monkeypatch, error, method, digest, quick, rows):
    classifier = quick(method=method, holdout_per_class=2).partial_fit(*rows(0, 1))
    before, shown = digest(classifier), dict(vars(classifier))
    steps = 0
    events = Training.events

    def failing(self):
        nonlocal steps
        for event in events(self):
            steps += 1
            if steps == 2:
                raise error
            yield event

    with monkeypatch.context() as patched:
        patched.setattr(Training, "events", failing)
        with pytest.raises(error):
            classifier.partial_fit(*rows(2))
    assert digest(classifier) == before
    assert vars(classifier) == shown
    again = quick(method=method, holdout_per_class=2).partial_fit(*rows(0, 1))
    more = rows(2)
    assert digest(classifier.partial_fit(*more)) == digest(again.partial_fit(*more))


def test_rows_that_look_like_codes_are_warned_of(quick):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, size=(40, 6)).astype(float)
    with pytest.warns(DataWarning, match="symbols") as found:
        classifier = quick(epochs=1).fit(codes, [0, 1] * 20)
    assert found[0].filename == __file__  # the warning names the line of the call
    assert "mix='none'" in classifier.report_.warnings[0]
    quick(epochs=1).fit(codes + rng.normal(size=codes.shape), [0, 1] * 20)


def test_parameters_that_may_change_between_calls_do(quick, rows):
    classifier = quick(mix="gradmix+", epochs=1).partial_fit(*rows(0, 1))
    classifier.set_params(epochs=3, mix="mixup").partial_fit(*rows(2))
    assert [report.epochs for report in classifier.history_] == [1, 3]
    assert classifier.report_.avoided_share is None
