"""Evaluation during training and task-aware evaluation: values, and that no bit changes."""

import json

import numpy as np
import pytest

from gradmix import ResultStore, config_for, load_result
from gradmix.methods import METHODS
from gradmix.runs.run import load_benchmark, prepare, run
from gradmix.training.loop import EpochDone, StepDone

TRAINED = sorted(name for name, info in METHODS.items() if info.build.trains)


def quick(**changes):
    given = {"epochs": 1, "increments": (5,), "device": "cpu", "mix": "none", **changes}
    return config_for("digits", **given)


@pytest.fixture(scope="module")
def benchmark():
    return load_benchmark(quick())


def without_times(result):
    entries = {**vars(result), "seconds": None, "config": None, "evaluations": None}
    metrics = {k: v for k, v in result.metrics.items() if k != "anytime_accuracy"}
    return {**entries, "metrics": metrics}


@pytest.mark.parametrize("method", TRAINED)
def test_evaluations_do_not_change_training(benchmark, method):
    config = quick(method=method, batch_size=100)
    often = config.with_changes(evaluate_every_steps=3, evaluate_every_epochs=1)
    measured = run(often, benchmark=benchmark)
    assert without_times(measured) == without_times(run(config, benchmark=benchmark))
    assert measured.evaluations


def test_evaluations_come_at_their_steps_and_make_the_anytime_accuracy(benchmark):
    config = quick(epochs=2, batch_size=100, evaluate_every_steps=4, evaluate_every_epochs=2)
    result = run(config, benchmark=benchmark)
    # Two tasks of two epochs of seven steps: every fourth step, and the end of each task.
    steps = [(entry["task"], entry["step"]) for entry in result.evaluations]
    assert steps == [(0, 4), (0, 8), (0, 12), (0, 14), (1, 16), (1, 20), (1, 24), (1, 28)]
    assert result.evaluations[3]["accuracy"] == result.accuracy[0]
    assert result.evaluations[-1]["accuracy"] == result.accuracy[1]
    seen = [np.mean(entry["accuracy"][: entry["task"] + 1]) for entry in result.evaluations]
    assert result.metrics["anytime_accuracy"] == pytest.approx(np.mean(seen))


def test_task_aware_accuracy_compares_the_outputs_of_the_task_only(benchmark):
    config = quick(batch_size=100)
    training = prepare(config, benchmark)
    for _ in training.events():
        pass
    result = run(config, benchmark=benchmark)
    for number, task in enumerate(benchmark.tasks):
        scores = training.method.predict(training.method.normalise(task.test.x))
        own = scores[:, list(task.classes)].argmax(dim=1) + task.classes[0]
        expected = float((own == task.test.y).float().mean())
        assert result.task_aware_accuracy[-1][number] == pytest.approx(expected)
    assert result.metrics["final_task_aware_accuracy"] > result.metrics["final_accuracy"]


def test_tasks_of_all_classes_have_no_smaller_set_of_outputs():
    result = run(quick(scenario="domain-incremental", domains=2, increments=(2,)))
    assert result.task_aware_accuracy == result.accuracy


def test_an_output_that_does_not_exist_yet_is_never_right(benchmark):
    result = run(quick(head="growing"), benchmark=benchmark)
    assert result.task_aware_accuracy[0][1] == 0


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("kind", [StepDone, EpochDone])
def test_a_stopped_run_evaluates_no_step_twice(tmp_path, benchmark, kind):
    config = quick(batch_size=100, epochs=2, evaluate_every_steps=7, evaluate_every_epochs=1)

    def stop(training, event):
        if isinstance(event, kind) and training.position.total_steps == 7:
            raise StoppedError

    whole = run(config, benchmark=benchmark)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradmix.training.checkpoint.EVERY_SECONDS", 0.0)
        patch.setattr("gradmix.training.checkpoint.SHARE", 1e9)
        with pytest.raises(StoppedError):
            run(config, stop, benchmark, tmp_path / "c")
    resumed = run(config, benchmark=benchmark, checkpoint=tmp_path / "c")
    assert resumed.evaluations == whole.evaluations
    assert [entry["step"] for entry in whole.evaluations] == [7, 14, 21, 28]


def test_files_have_the_evaluations_and_older_files_load(tmp_path, benchmark):
    result = run(quick(method="icarl", evaluate_every_epochs=1), benchmark=benchmark)
    path = ResultStore(tmp_path).create().save(result)
    assert load_result(path) == result
    content = json.loads(path.read_text())
    del content["task_aware_accuracy"], content["evaluations"]
    for variant in content["variants"].values():
        del variant["task_aware_accuracy"]
    path.write_text(json.dumps(content))
    older = load_result(path)
    assert (older.task_aware_accuracy, older.evaluations) == (None, [])
