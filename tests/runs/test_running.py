"""Locks of runs: one process at a time, released when it ends; and the progress of runs."""

import errno
import os
from pathlib import Path

import pytest

from gradmix import config_for
from gradmix.runs.run import load_benchmark, prepare
from gradmix.runs.store import RunProgress, read_progress
from gradmix.training.loop import StepDone


def test_one_process_at_a_time_and_the_next_when_it_is_killed(store, other_process):
    config = config_for("digits")
    path = store.path / "running" / store.path_of(config).stem
    first, answer = other_process(path)
    assert answer == "mine"
    assert store.lock(config) is None
    assert not store.free_if_abandoned(config)
    second, answer = other_process(path)
    second.kill()
    second.join()
    assert answer == "taken"
    assert store.lock(config) is None
    first.kill()
    first.join()
    assert path.exists()
    assert store.free_if_abandoned(config)
    assert not path.exists()
    with store.lock(config) as lock:
        assert lock is not None
        assert store.lock(config) is None


def test_a_lock_reports_progress(store):
    config, at = config_for("digits"), RunProgress(1, 5, 2, 20, 0.02)
    name = store.path_of(config).stem
    with store.lock(config) as lock:
        assert store.progress() == {name: None}
        lock.report(RunProgress(5, 5, 19, 20, 0.9999999))
        lock.report(at)
        assert store.progress() == {name: at}
    assert store.progress() == {}
    with store.lock(config):
        assert store.progress() == {name: None}


def test_an_error_releases_the_lock(store):
    with pytest.raises(ValueError, match="oh"), store.lock(config_for("digits")):
        raise ValueError("oh")
    assert store.lock(config_for("digits")) is not None


def test_a_full_disk_names_the_progress_file(store, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.lock(config_for("digits")) as lock:
        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left") as caught:
            lock.report(None)
    assert caught.value.filename == str(lock.path)


def test_processes_that_want_one_lock_get_it_one_after_another(tmp_path, forked):
    code = """
import os
from gradmix.runs.store import try_to_lock
done = 0
while done < 20:
    lock = try_to_lock(path)
    if lock:
        with lock:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL))
            guard.unlink()
        done += 1
"""
    paths = {"path": tmp_path / "running" / "x", "guard": tmp_path / "guard"}
    processes = [forked(code, **paths) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"pid": 1, "progress": {"task": 1}}', "[" * 9000, " " * 20_000],
)
def test_an_unfinished_or_damaged_progress_file_has_no_progress(tmp_path, text):
    (tmp_path / "run").write_text(text)
    assert read_progress(tmp_path / "run") is None


@pytest.mark.parametrize(("method", "epochs"), [("er", 2), ("foster", 2)])
def test_progress_grows_to_1_over_tasks_stages_and_epochs(method, epochs):
    config = config_for("digits", method=method, epochs=epochs, increments=(5, 5))
    training = prepare(config, load_benchmark(config))
    seen = [RunProgress.after(training, e) for e in training.events() if isinstance(e, StepDone)]
    shares = [at.share for at in seen]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    assert 0 < shares[0] < 0.1
    assert (seen[0].task, seen[0].tasks, seen[0].epoch) == (1, 2, 1)
    assert seen[-1].epoch == seen[-1].epochs
    assert {at.task for at in seen} == {1, 2}
