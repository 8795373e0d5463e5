"""Seconds of the criterion."""

import pytest
import torch

from gradmix.diagnostics import criterion_seconds
from gradmix.errors import InputError, UnknownNameError


def test_a_time_for_every_number_of_classes(make, samples):
    seconds = criterion_seconds(make("sequential"), *samples(), old_classes=[1, 2, 3], repeats=2)
    assert list(seconds) == [3, 4, 5]
    assert all(value > 0 for value in seconds.values())
    assert list(criterion_seconds(make("sequential"), *samples(), repeats=1)) == [5]


@pytest.mark.parametrize("pairing", ["one-to-one", "all-pairs"])
def test_a_refresh_passes_the_memory_and_some_current_samples(pairing, make, samples, seeded):
    model, seen = make("sequential"), []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    (x_old, _), current = samples()
    criterion_seconds(
        model,
        (x_old, samples()[0][1]),
        current,
        old_classes=[1, 3],
        criterion_exemplars=2,
        tables=3,
        pairing=pairing,
        repeats=2,
        generator=seeded(),
    )
    hook.remove()
    assert [len(x) for x in seen] == [4 + 3] * 3 + [4 + 5] * 3  # one more goes ahead
    assert torch.equal(seen[-1][4:], x_old)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"old_classes": [4]}, InputError, "old_classes has 4; the memory has 1 to 3 classes"),
        ({"old_classes": [0]}, InputError, "old_classes has 0"),
        ({"tables": 0}, InputError, "tables is 0"),
        ({"criterion_exemplars": 0}, InputError, "criterion_exemplars is 0"),
        ({"repeats": 0}, InputError, "repeats is 0; give 1 or more"),
        ({"pairing": "all-pair"}, UnknownNameError, "did you mean 'all-pairs'"),
    ],
)
def test_bad_settings_are_refused(options, error, message, make, samples):
    with pytest.raises(error, match=message):
        criterion_seconds(make("linear"), *samples(), **options)
