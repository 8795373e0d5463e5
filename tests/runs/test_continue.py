"""Runs of a store that were stopped: continued, started anew, forgotten."""

from contextlib import suppress
from dataclasses import asdict

import pytest

from gradmix.errors import DivergedError
from gradmix.files import locked
from gradmix.runs.config import config_for
from gradmix.runs.run import run
from gradmix.runs.store import MARKER, ResultStore
from gradmix.runs.sweep import complete, run_sweep
from gradmix.training import checkpoint as checkpoints
from gradmix.training.loop import TaskDone

CONFIG = config_for("digits", epochs=1, batch_size=128, mix="gradmix+")


@pytest.fixture(autouse=True)
def saved_at_once(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", 1e9)


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "runs").create()


@pytest.fixture(scope="module")
def expected():
    return without_times(run(CONFIG))


def without_times(result):
    return {**asdict(result), "seconds": None}


def files(store):
    return sorted(p.name for p in store.path.rglob("*") if p.is_file())


def stop_after(tasks):
    def observe(_, event):
        if isinstance(event, TaskDone) and event.task == tasks - 1:
            raise KeyboardInterrupt

    return observe


def stopped(store, tasks=2, **given):
    """A store with a run that was stopped after two tasks."""
    with suppress(KeyboardInterrupt):
        complete(CONFIG, store, on_event=stop_after(tasks), **given)
    return store.checkpoint_of(CONFIG)


def test_a_checkpoint_lies_beside_the_result_to_be(store):
    path = stopped(store)
    assert path == store.path_of(CONFIG).with_suffix(".checkpoint")
    assert files(store) == sorted([path.name, MARKER])


def test_a_stopped_run_goes_on_and_says_so(store, expected):
    stopped(store)
    said, seen = [], []
    outcome = complete(CONFIG, store, on_event=lambda _, e: seen.append(e.task), say=said.append)
    assert said == [outcome.remark] == ["resuming at task 3, epoch 1"]
    assert min(seen) == 2
    assert without_times(outcome.result) == expected
    assert files(store) == sorted([store.path_of(CONFIG).name, MARKER])


def test_a_sweep_goes_on_too(store, expected):
    stopped(store)
    sweep = run_sweep([CONFIG], store)
    assert sweep.outcomes[CONFIG].remark == "resuming at task 3, epoch 1"
    assert [without_times(result) for result in sweep.results] == [expected]


def test_stopped_after_the_last_task(store, expected):
    stopped(store, tasks=5)
    outcome = complete(CONFIG, store)
    assert outcome.remark == "resuming after the last task"
    assert without_times(outcome.result) == expected


@pytest.mark.parametrize("how", [{"again": True}, {"checkpoint": False}])
def test_again_and_without_checkpoints_runs_start_anew(store, expected, how):
    stopped(store)
    seen = []
    outcome = complete(CONFIG, store, on_event=lambda _, e: seen.append(e.task), **how)
    assert min(seen) == 0
    assert outcome.remark == ""
    assert without_times(outcome.result) == expected
    assert files(store) == sorted([store.path_of(CONFIG).name, MARKER])


def test_without_checkpoints_there_is_none(store):
    assert not stopped(store, checkpoint=False).exists()
    run_sweep([CONFIG], store, checkpoint=False)
    assert files(store) == sorted([store.path_of(CONFIG).name, MARKER])


def test_results_of_another_protocol_are_not_continued(store, expected, monkeypatch):
    stopped(store)
    path = store.checkpoint_of(CONFIG)
    monkeypatch.setattr("gradmix.runs.run.protocol_version", lambda config: 0)
    said = []
    run(CONFIG, checkpoint=path, say=said.append)
    assert said == [
        f"starting again: {path} belongs to another run (protocol_version was 1 and is 0)"
    ]


def test_what_was_left_beside_a_result_is_removed(store):
    """By a process that died between writing the one and removing the other."""
    path = stopped(store)
    content = path.read_bytes()
    complete(CONFIG, store)
    path.write_bytes(content)
    (store.path / f".{path.name}.01234567.tmp").write_bytes(b"half")
    (store.path / f".{path.name}.lock").write_bytes(b"")
    claim = store.path / "running" / f".{path.stem}.lock"
    claim.write_bytes(b"")
    store.tidy()
    assert files(store) == sorted([store.path_of(CONFIG).name, MARKER])


def test_tidying_keeps_what_can_be_continued(store):
    path = stopped(store)
    (store.path / f".{path.name}.01234567.tmp").write_bytes(b"half")
    (store.path / f".{path.name}.lock").write_bytes(b"")
    (store.path / "running" / f".{path.stem}.lock").write_bytes(b"")
    store.tidy()
    assert files(store) == sorted([path.name, MARKER])


def test_a_run_that_fails_can_go_on_when_the_reason_is_gone(store, expected, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    def observe(_, event):
        if isinstance(event, TaskDone) and event.task == 2:
            fail()

    assert complete(CONFIG, store, on_event=observe).failure.message == "out of memory"
    assert run_sweep([CONFIG], store).count("failed") == 1
    sweep = run_sweep([CONFIG], store, retry_failed=True)
    assert sweep.outcomes[CONFIG].remark == "resuming at task 4, epoch 1"
    assert [without_times(result) for result in sweep.results] == [expected]


def test_training_that_diverges_diverges_again(store):
    config = config_for("digits", epochs=1, lr=1e30, mix="none")
    with pytest.raises(DivergedError):
        complete(config, store, raising=True)
    with pytest.raises(DivergedError):
        complete(config, store, raising=True)


def test_a_checkpoint_in_use_elsewhere_fails_the_run_and_nothing_else(store, monkeypatch):
    monkeypatch.setattr("gradmix.runs.run.LOCK_SECONDS", 0.1)
    with locked(store.checkpoint_of(CONFIG)):
        outcome = complete(CONFIG, store)
    assert outcome.failure.error == "FileInUseError"
    assert complete(CONFIG, store).status == "done"


def test_what_was_measured_before_a_stop_is_kept(store):
    config = CONFIG.with_changes(analyses=("class-distance",))
    with suppress(KeyboardInterrupt):
        complete(config, store, on_event=stop_after(2))
    result = complete(config, store).result
    assert [e["task"] for e in result.analysis["class-distance"]] == [0, 1, 2, 3, 4]
    assert without_times(result) == without_times(run(config))
    by_task = result.seconds["criterion_by_task"]
    assert (len(by_task), sum(by_task)) == (5, pytest.approx(result.seconds["criterion"]))
