"""A log: which numbers an event has, and that no number is written twice."""

import csv
import sys
import warnings

import numpy as np
import pytest

from gradmix import IncrementalClassifier, LogTo, config_for, log_to
from gradmix.errors import FileError, InputError, MissingPackageError
from gradmix.loggers import Log
from gradmix.loggers.destinations import CsvLogger
from gradmix.runs.run import load_benchmark, run


def quick(**changes):
    given = {"epochs": 2, "increments": (5,), "device": "cpu", "mix": "none", "batch_size": 100}
    return config_for("digits", **{**given, **changes})


@pytest.fixture(scope="module")
def benchmark():
    return load_benchmark(quick())


def rows_of(path):
    with path.open(newline="") as file:
        return [(int(r["step"]), r["name"], float(r["value"])) for r in csv.DictReader(file)]


def only_file(folder):
    [path] = folder.iterdir()
    return path


def test_a_run_logs_epochs_tasks_evaluations_and_steps(tmp_path, benchmark):
    config = quick(evaluate_every_steps=10)
    result = run(config, benchmark=benchmark, log=LogTo([f"csv:{tmp_path}"], every_steps=7))
    assert only_file(tmp_path).name.startswith("digits-er-none-seed0-")
    rows = rows_of(only_file(tmp_path))
    steps = {name: [step for step, other, _ in rows if other == name] for _, name, _ in rows}
    # Two tasks of two epochs of seven steps.
    assert steps["loss"] == steps["epoch/loss"] == [7, 14, 21, 28]
    assert steps["accuracy"] == [10, 20]
    assert steps["accuracy/task_2"] == [20]
    assert steps["task_end/accuracy"] == steps["task_end/memory"] == [14, 28]
    values = {(step, name): value for step, name, value in rows}
    assert values[28, "task_end/accuracy"] == pytest.approx(result.metrics["final_accuracy"])
    assert values[28, "task_end/accuracy/task_1"] == pytest.approx(result.accuracy[1][0])
    assert values[28, "task_end/task_aware_accuracy"] == pytest.approx(
        result.metrics["final_task_aware_accuracy"]
    )
    assert values[14, "epoch/loss"] == pytest.approx(result.epochs[0]["loss"][1], rel=1e-5)
    assert values[20, "accuracy/task_2"] == pytest.approx(result.evaluations[1]["accuracy"][1])
    assert values[28, "task_end/memory"] == result.tasks[1]["memory"]


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("saved", [3, 14], ids=["in an epoch", "between tasks"])
def test_a_resumed_run_writes_no_row_twice(tmp_path, benchmark, monkeypatch, saved):
    config, whole, parts = quick(evaluate_every_steps=5), tmp_path / "whole", tmp_path / "parts"
    run(config, benchmark=benchmark, log=LogTo([f"csv:{whole}"], every_steps=1))

    def stop(training, _):  # the last checkpoint is older than the last rows
        if training.position.total_steps == saved + 1:
            monkeypatch.setattr("gradmix.training.checkpoint.Checkpoint.note", lambda *_: None)
        if training.position.total_steps == saved + 6:
            raise StoppedError

    monkeypatch.setattr("gradmix.training.checkpoint.SHARE", 1e9)
    monkeypatch.setattr("gradmix.training.checkpoint.EVERY_SECONDS", 0.0)
    with pytest.raises(StoppedError):
        run(config, stop, benchmark, tmp_path / "c", log=LogTo([f"csv:{parts}"], every_steps=1))
    monkeypatch.undo()
    with only_file(parts).open("a") as file:
        file.write("99,lo")  # a row that was cut off
    said = []
    run(config, None, benchmark, tmp_path / "c", said.append, LogTo([f"csv:{parts}"], 1))
    assert said[0].startswith("resuming at task")
    assert only_file(parts).read_text() == only_file(whole).read_text()


def test_a_new_run_replaces_the_log(tmp_path, benchmark):
    logs = LogTo([f"csv:{tmp_path}"])
    run(quick(), benchmark=benchmark, log=logs)
    first = only_file(tmp_path).read_text()
    run(quick(), benchmark=benchmark, log=logs)
    assert only_file(tmp_path).read_text() == first


def test_logs_do_not_change_a_run(tmp_path, benchmark):
    with_log = run(quick(), benchmark=benchmark, log=LogTo([f"csv:{tmp_path}"], 1))
    without = run(quick(), benchmark=benchmark)
    assert (with_log.accuracy, with_log.epochs) == (without.accuracy, without.epochs)


def test_a_run_without_steps_counts_tasks(tmp_path):
    config = quick(method="ridge", model="linear")
    run(config, log=LogTo([f"csv:{tmp_path}"]))
    steps = [step for step, name, _ in rows_of(only_file(tmp_path)) if name == "task_end/accuracy"]
    assert steps == [1, 2]


def table(labels):
    y = np.repeat(labels, 15)
    return np.random.default_rng(0).normal(y[:, None], 0.1, (len(y), 2)), y


def test_calls_of_a_classifier_count_their_steps_on(tmp_path):
    clf = IncrementalClassifier(epochs=3, random_state=0)
    with log_to(f"csv:{tmp_path}", name="calls", every_steps=1) as log:
        clf.partial_fit(*table([0, 1]), callback=log)
        clf.partial_fit(*table([2, 3]), callback=log)
    rows = rows_of(tmp_path / "calls.csv")
    steps = [step for step, name, _ in rows if name == "loss"]
    assert steps == [*range(1, len(steps) + 1)]
    ends = [step for step, name, _ in rows if name == "task_end/memory"]
    assert len(ends) == 2
    assert ends[1] == steps[-1]
    assert len([1 for _, name, _ in rows if name == "epoch/loss"]) == 6


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ("csv", "log is 'csv'; give a place, such as csv:logs"),
        ("cvs:logs", "unknown logger 'cvs'"),
        ("", "unknown logger ''"),
    ],
)
def test_a_destination_of_another_form_is_refused(destination, message):
    with pytest.raises(InputError, match=message):
        LogTo([destination])


def test_values_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(InputError, match="every_steps is 0; give 1 or more"):
        LogTo([f"csv:{tmp_path}"], every_steps=0)
    with pytest.raises(InputError, match=r"name is 'a/b'; use letters"):
        log_to(f"csv:{tmp_path}", name="a/b")


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_before_any_work(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(MissingPackageError, match=f"{kind} is not installed: pip install"):
        LogTo([f"{kind}:place"])


def test_a_file_that_is_not_a_log_is_not_replaced(tmp_path):
    (tmp_path / "a.csv").write_text("my,own,data\n")
    with pytest.raises(FileError, match="is not a log; give another folder"):
        CsvLogger(str(tmp_path), "a").begin({}, resumed=False)
    assert (tmp_path / "a.csv").read_text() == "my,own,data\n"


class Failing:
    """A service that cannot be reached after it has begun."""

    def begin(self, config, resumed):
        return {}

    def log(self, step, values):
        raise ConnectionError("no network")

    def close(self):
        raise AssertionError("a logger that failed is not used again")


class FailingAtTheEnd(Failing):
    def log(self, step, values):
        pass

    def close(self):
        raise ConnectionError("no network")


def test_a_logger_that_cannot_be_closed_does_not_lose_the_training(make_training):
    said = []
    with Log({"a:x": FailingAtTheEnd(), "b:x": FailingAtTheEnd()}, say=said.append) as log:
        for event in make_training().events():
            log(event)
    assert [text[:22] for text in said] == ["logging to a:x failed:", "logging to b:x failed:"]


def test_a_logger_that_fails_does_not_end_the_training(make_training):
    said = []
    with Log({"service:x": Failing()}, say=said.append) as log:
        for event in make_training().events():
            log(event)
    assert said == ["logging to service:x failed: no network; training continues without it"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = Log({"service:x": Failing()})
        for event in make_training().events():
            log(event)
    assert [str(warning.message) for warning in caught] == said
