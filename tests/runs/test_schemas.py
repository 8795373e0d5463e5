"""A saved record is checked against the run before it resumes."""

import copy

import pytest
import torch

from gradmix import config_for
from gradmix.errors import FileError, InputError
from gradmix.files import read_state_file, write_state_file
from gradmix.runs._schemas import check_record
from gradmix.runs.run import run

RECORD = {
    "initial": {"main": [0.5, 0.0]},
    "accuracy": {"main": [[1.0, 0.0]]},
    "task_aware": {"main": [[1.0, 0.5]]},
    "evaluations": [{"task": 0, "step": 3, "accuracy": [1.0, 0.0]}],
    "predicted": [],
    "class_accuracy": [[1.0, 0.0, 0.5]],
    "pair_counts": [torch.zeros(3, 3, dtype=torch.int64)],
    "epochs": [{"task": 0, "stage": "train", "loss": [0.5], "negative_rate": [None]}],
    "tasks": [{"classes": [0, 1], "train": 5, "test": 5, "memory": 2, "replay_batch": 0}],
    "analysis": {},
    "criterion_seconds": [0.1],
}
RUN = {"done": 1, "tasks": 2, "classes": 3, "analyses": ()}


def test_a_valid_record_passes():
    check_record(RECORD, **RUN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial", {"main": [0.5]}),
        ("initial", {"other": [0.5, 0.0]}),
        ("accuracy", {"main": "x"}),
        ("accuracy", {"main": [[1.0, 2.0]]}),
        ("accuracy", {"main": []}),
        ("task_aware", {"other": [[1.0, 0.5]]}),
        ("task_aware", {"main": [[1.0]]}),
        ("evaluations", [{"task": 0, "step": 3, "accuracy": [1.0]}]),
        ("evaluations", [{"task": 2, "step": 3, "accuracy": [1.0, 0.0]}]),
        ("predicted", [1, 2, 3]),
        ("class_accuracy", [[1.0]]),
        ("class_accuracy", None),
        ("pair_counts", [torch.zeros(3)]),
        ("pair_counts", [1]),
        ("epochs", [{"task": 0}]),
        ("epochs", {"a": 1}),
        ("tasks", [{"classes": "0"}]),
        ("tasks", []),
        ("analysis", {"class-distance": []}),
        ("criterion_seconds", [-1.0]),
        ("criterion_seconds", [float("nan")]),
    ],
)
def test_an_altered_field_is_named(field, value):
    record = copy.deepcopy(RECORD) | {field: value}
    with pytest.raises(InputError, match=rf"record\.({field}|accuracy)"):
        check_record(record, **RUN)


def test_a_checkpoint_with_an_altered_record_is_a_file_error(tmp_path, monkeypatch):
    monkeypatch.setattr("gradmix.training.checkpoint.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("gradmix.training.checkpoint.SHARE", 1e9)
    config, path = config_for("digits", mix="none", epochs=1), tmp_path / "c"

    def stop(training, event):
        if training.position.task == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, stop, checkpoint=path)
    state = read_state_file(path, "checkpoint")
    state["record"]["accuracy"] = 5
    write_state_file(path, "checkpoint", state)
    with pytest.raises(FileError, match=r"record\.accuracy"):
        run(config, checkpoint=path)
