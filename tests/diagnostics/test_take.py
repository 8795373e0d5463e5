"""Analyses taken along by a run: when, of what, and without a trace in the training."""

import json

import pytest

from gradmix.diagnostics import ANALYSES, measurements, take
from gradmix.diagnostics.measurements import _num_rows
from gradmix.errors import UnknownNameError
from gradmix.methods import METHODS
from gradmix.training.loop import EpochDone

NAMES = ("detrimental-rate", "approximation-error", "precision-recall", "class-distance")
ABOUT_MEMORY = set(NAMES[:3])


def analysed(training, names=NAMES):
    """Every event, and what was measured at it."""
    return [(event, take(names, training, event)) for event in training.events()]


def measured(pairs):
    return {(e.task, e.stage, e.epoch): taken for e, taken in pairs if taken}


def test_the_registry_has_them_all():
    assert tuple(ANALYSES) == NAMES


@pytest.mark.parametrize("network", ["mlp", "resnet"])
@pytest.mark.parametrize("mix", ["none", "mixup", "gradmix+"])
def test_training_goes_on_to_the_same_bits(
    mix, network, assert_same_events, assert_same, make_training
):
    plain = make_training(mix=mix, network=network)
    events = plain.finish()
    other = make_training(mix=mix, network=network)
    pairs = analysed(other)
    assert_same_events([event for event, _ in pairs], events)
    assert_same(other.state_dict(), plain.state_dict())
    assert sum(bool(taken) for _, taken in pairs) == 3


def test_when_they_are_due(make_training):
    taken = measured(analysed(make_training(epochs=6, mix="gradmix")))
    for task in range(3):
        for epoch in range(1, 7):
            names = set(taken.get((task, "train", epoch), ()))
            expected = {"detrimental-rate"} if task else set()
            if epoch in (1, 2, 4, 6):
                expected |= set(NAMES) if task else {"class-distance"}
            assert names == expected


def test_only_what_was_asked_for_is_taken(make_training):
    training = make_training(epochs=2)
    pairs = analysed(training, ["class-distance"])
    assert {name for _, taken in pairs for name in taken} == {"class-distance"}
    assert not any(taken for _, taken in analysed(make_training(), []))


def test_an_unknown_name_is_refused_at_the_first_event(make_training):
    training = make_training()
    with pytest.raises(UnknownNameError, match="did you mean 'class-distance'"):
        take(["class-distances"], training, next(training.events()))


@pytest.mark.parametrize("method", [n for n, info in METHODS.items() if info.build.trains])
def test_every_method_can_be_analysed(method, make_training):
    """In the first stage only; the bounds, which replay nothing, have no memory to speak of."""
    training = make_training(method=method, epochs=2, lr=0.01)
    taken = measured(analysed(training))
    assert {stage for _, stage, _ in taken} <= {"train", "boosting", "adaptation"}
    assert {task for task, _, _ in taken} == {0, 1, 2}
    for (task, _, _), result in taken.items():
        replays = training.method.replays and task > 0
        assert set(result) == (set(NAMES) if replays else {"class-distance"})
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        for rate in result.get("detrimental-rate", {}).values():
            assert 0 <= rate <= 1
        error = result.get("approximation-error", {"of_samples": [0.0]})["of_samples"]
        assert error[0] == error[-1] == 0.0


def test_a_measurement_does_not_depend_on_others_or_on_where_training_began(make_training):
    every = measured(analysed(make_training(epochs=2, mix="mixup")))
    some = measured(analysed(make_training(epochs=2, mix="mixup"), ["precision-recall"]))
    assert {task for task, _, _ in some} == {1, 2}
    for at, result in some.items():
        assert result["precision-recall"] == every[at]["precision-recall"]
    first = make_training(epochs=2, mix="mixup")
    first.run_tasks(1)
    resumed = make_training(epochs=2, mix="mixup")
    resumed.load_state_dict(first.state_dict())
    for at, result in measured(analysed(resumed)).items():
        assert result == every[at]


def test_the_seed_decides_what_is_drawn(make_training):
    one, other = (measured(analysed(make_training(seed=seed))) for seed in (0, 1))
    assert one.keys() == other.keys()
    assert one != other


def test_a_single_class_has_no_distances_yet(blobs, make_training):
    training = make_training(benchmark=blobs(sizes=((9,), (8,), (7,))))
    taken = measured(analysed(training))
    assert {task for task, _, _ in taken} == {1, 2}
    assert all(set(result) == set(NAMES) for result in taken.values())


def test_many_classes_are_sampled(monkeypatch, make_training):
    """Few first classes are taken where all pairs would pass the limit, at least one."""
    training = make_training(mix="gradmix")
    training.run_tasks(2)
    for event in training.events():
        if isinstance(event, EpochDone):
            break
    method = training.method
    assert _num_rows(method, 8) >= 6
    monkeypatch.setattr(measurements, "MAX_INPUTS", 2 * 6 * 32 * 10)
    assert _num_rows(method, 8) == 2
    monkeypatch.setattr(measurements, "MAX_INPUTS", 1)
    assert _num_rows(method, 8) == 1
    assert take(["precision-recall"], training, event)["precision-recall"]["recall"] <= 1
