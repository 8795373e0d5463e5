"""Online runs: their settings, results, files and refusals."""

import pytest

from gradmix import ResultStore, config_for, load_result
from gradmix.errors import InputError
from gradmix.runs.run import run
from gradmix.training.loop import StepDone


def quick(**changes):
    given = {"scenario": "online", "device": "cpu", "mix": "none", "increments": (5,), **changes}
    return config_for("digits", **given)


def test_an_online_run_has_one_epoch_by_default():
    assert quick().epochs == 1
    assert config_for("cifar-100", scenario="online").lr_steps == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2}, "epochs is 2; an online stream is seen once; give 1"),
        ({"method": "icarl"}, "scenario is 'online', and ICaRL needs all data of a task at once"),
        ({"method": "joint"}, "Joint needs all data of a task"),
        ({"exemplar_selection": "herding"}, "exemplar_selection is 'herding', which compares all"),
        ({"reservoir": "plain"}, "reservoir is 'plain', which has no budget per class; give mem"),
        (
            {"scenario": "blurry", "reservoir": "plain"},
            "reservoir belongs to the scenario 'online'",
        ),
        ({"blur": 0.2}, "blur belongs to the scenario 'blurry' or 'online-blurry'"),
        (
            {"model": "efficientnet-lite0", "finetune": "last"},
            "finetune is 'last' and scenario is 'online'",
        ),
    ],
)
def test_what_has_no_meaning_online_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        quick(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"mix": "gradmix+", "evaluate_every_steps": 10},
        {"scenario": "online-blurry", "reservoir": "plain", "memory_total": 9},
        {"scenario": "online-domain-incremental", "domains": 2, "increments": (2,)},
    ],
    ids=["balanced", "blurry", "domains"],
)
def test_results_have_the_accuracy_over_the_stream(tmp_path, changes):
    predicted = {0: 0, 1: 0}

    def watch(_, event):
        if isinstance(event, StepDone):
            predicted[event.task] += int(event.predicted)

    result = run(quick(**changes), watch)
    samples = [task["train"] for task in result.tasks]
    shares = [predicted[task] / number for task, number in enumerate(samples)]
    assert result.stream_accuracy == shares
    assert result.metrics["stream_accuracy"] == pytest.approx(
        sum(predicted.values()) / sum(samples)
    )
    assert result.metrics["final_accuracy"] > 0.2  # chance is 0.1
    path = ResultStore(tmp_path).create().save(result)
    assert load_result(path) == result


class StoppedError(Exception):
    pass


def test_a_stopped_run_resumes_exactly(tmp_path, monkeypatch):
    config = quick(mix="gradmix+", evaluate_every_steps=5)
    whole = run(config)
    monkeypatch.setattr("gradmix.training.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("gradmix.training.checkpoint.SHARE", 1e9)

    def stop(training, _):
        if training.position.total_steps == 33:  # in the second task
            raise StoppedError

    with pytest.raises(StoppedError):
        run(config, stop, checkpoint=tmp_path / "c")
    resumed = run(config, checkpoint=tmp_path / "c")
    for name in ("accuracy", "evaluations", "stream_accuracy", "pair_counts", "epochs", "tasks"):
        assert getattr(resumed, name) == getattr(whole, name)
