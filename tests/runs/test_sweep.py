"""Sweeps: never twice, whatever happens to whoever computes them."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from functools import partial

import pytest

from gradmix.data import DATASETS, digits
from gradmix.errors import DataNotFoundError, FileError, InputError, WorkerError
from gradmix.methods.er import ER
from gradmix.plugins import register
from gradmix.runs import run as complete_module
from gradmix.runs import sweep as sweep_module
from gradmix.runs.config import config_for
from gradmix.runs.run import complete
from gradmix.runs.store import MARKER, ResultStore, RunProgress
from gradmix.runs.sweep import Sweep, find_impossible, run_sweep

TWELVE = {"data": ["digits"], "mix": ["none", "gradmix+"], "seeds": "0-5", "epochs": 1}


def quick(seeds=(0,), **changes):
    return [config_for("digits", **{"epochs": 1, "seed": seed, **changes}) for seed in seeds]


def without_times(result):
    return {name: value for name, value in asdict(result).items() if name != "seconds"}


def files(store):
    """Everything in a store, hidden files too."""
    return sorted(p.name for p in store.path.rglob("*") if p.is_file())


@pytest.fixture
def store(tmp_path):
    """A store that does not exist yet."""
    return ResultStore(tmp_path / "runs")


def test_a_sweep_runs_what_is_missing_and_reports_each(store):
    configs = quick(range(3))
    run_sweep(configs[:1], store)
    seen = []
    sweep = run_sweep(
        configs, store, on_progress=lambda s, o: seen.append((o and o.status, s.count("done")))
    )
    assert seen == [("kept", 0), (None, 0), ("done", 1), ("done", 2)]
    assert [r.config["seed"] for r in sweep.results] == [0, 1, 2]
    assert sweep.results == store.results()
    assert (sweep.todo, sweep.settled, sweep.count("kept", "done")) == (2, 2, 3)
    assert run_sweep(configs, store).count("kept") == 3


def test_two_jobs_give_the_results_of_one(store, tmp_path):
    configs = quick(range(2)) + quick(mix="none")
    one = run_sweep(configs, ResultStore(tmp_path / "one"))
    two = run_sweep(configs, store, jobs=2)
    assert list(map(without_times, two.results)) == list(map(without_times, one.results))
    assert files(store) == files(ResultStore(tmp_path / "one"))


def test_each_configuration_counts_once(store):
    assert len(run_sweep(quick() * 3, store).outcomes) == 1


def test_again_repeats(store):
    run_sweep(quick(), store)
    sweep = run_sweep(quick(), store, again=True)
    assert sweep.count("done") == 1


def test_a_data_set_is_loaded_once_whatever_the_order(example, store, monkeypatch):
    loaded = []

    def load(name):
        loaded.append(name)
        return digits()

    for name in ("digits", "mnist"):
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], load=partial(load, name)))
    complete_module.kept_dataset.cache_clear()
    one, two = quick((0, 1)), [config_for("mnist", epochs=1, seed=s, validation=0) for s in (0, 1)]
    monkeypatch.setattr(complete_module, "train", lambda config, *_: example(**_settings(config)))
    run_sweep([one[0], two[0], one[1], two[1]], store)
    complete_module.kept_dataset.cache_clear()
    assert loaded == ["digits", "mnist", "digits", "mnist"]  # for the checks, for the runs


def _settings(config):
    return config.to_json()


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failure_is_recorded_and_the_others_go_on(store, jobs):
    bad = quick(lr=1e30)
    sweep = run_sweep(bad + quick((0, 1)), store, jobs=jobs)
    assert (sweep.count("failed"), sweep.count("done")) == (1, 2)
    ([failure], _) = store.read_failures()
    assert failure.error == "DivergedError"
    assert "try an lr below" in failure.message
    assert 'File "gradmix/training/loop.py"' in failure.traceback
    assert failure.config == bad[0].to_json()
    assert sweep.failures == [failure]


def test_failures_are_retried_on_request_only(example, store, monkeypatch):
    run_sweep(quick(lr=1e30), store)
    calls = []

    def better_now(config, *_):
        calls.append(config)
        return example(**_settings(config))

    monkeypatch.setattr(complete_module, "train", better_now)
    again = run_sweep(quick(lr=1e30), store)
    assert (again.count("failed"), calls) == (1, [])
    retried = run_sweep(quick(lr=1e30), store, retry_failed=True)
    assert (retried.count("done"), calls) == (1, quick(lr=1e30))
    assert store.read_failures() == ([], {})


def test_a_store_that_cannot_be_written_ends_the_sweep(example, store, monkeypatch):
    monkeypatch.setattr(complete_module, "train", lambda config, *_: example(**_settings(config)))

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(ResultStore, "save", full)
    with pytest.raises(OSError, match="no space left"):
        run_sweep(quick(), store)
    assert store.read_failures() == ([], {})


# --- before anything runs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"increments": (3,)}, "data digits, method er, model mlp-small: increments"),
        ({"memory_total": 5}, "memory_total is 5"),
        ({"device": "tpuu"}, "device is 'tpuu'"),
        ({"validation": 5000}, "validation is 5000"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(store, changes, message):
    with pytest.raises(InputError, match=message):
        run_sweep(quick() + quick(**changes), store)
    assert not store.path.exists()


def test_what_does_not_fit_may_be_left_out(store):
    bad = quick((0, 1), increments=(3,))
    sweep = run_sweep(bad + quick(), store, skip_impossible=True)
    assert (sweep.count("impossible"), sweep.count("done"), sweep.todo) == (2, 1, 1)
    assert "increments" in sweep.outcomes[bad[0]].reason
    assert find_impossible(bad + quick()).keys() == set(bad)


def test_data_that_is_not_there_ends_the_sweep(store, monkeypatch, tmp_path):
    for name in ("GRADMIX_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(DataNotFoundError):
        run_sweep([config_for("tiny-imagenet")], store)
    assert not store.path.exists()


def test_a_damaged_result_ends_the_sweep_before_it_begins(store):
    run_sweep(quick(), store)
    store.path_of(quick()[0]).write_text("{")
    with pytest.raises(FileError, match=r"is not valid JSON.*; remove the file to run it"):
        run_sweep(quick((0, 1)), store)
    assert store.find(quick((1,))[0]) is None


def test_jobs_are_at_least_one(store):
    with pytest.raises(InputError, match="jobs is 0"):
        run_sweep(quick(), store, jobs=0)


@pytest.mark.slow  # tests/docs/test_cookbook.py has workers with plugins, too
def test_workers_know_the_plugins_of_this_process(store, plugins):
    class Own(ER):  # pickled by value, as the workers cannot import a test
        """A method that only this process knows."""

    register("method", "own", Own)
    register("metric", "worst_task", lambda matrix, initial: matrix[-1].min())
    sweep = run_sweep(quick((0, 1), method="own", mix="none"), store, jobs=2)
    assert sweep.count("done") == 2
    expected = run_sweep(quick((0, 1), mix="none"), store).results
    for own, er in zip(sweep.results, expected, strict=True):
        assert own.accuracy == er.accuracy
        assert own.metrics["worst_task"] == min(own.accuracy[-1])


def test_a_module_that_cannot_be_imported_is_named_before_any_run(store):
    with pytest.raises(InputError, match="import is 'no_such_module', which cannot be imported"):
        run_sweep(quick(), store, imports=["no_such_module"])
    assert not store.path.exists()


# --- progress -----------------------------------------------------------------------------------


def test_time_left_goes_by_what_was_done(store, monkeypatch):
    configs = quick(range(4))
    sweep = Sweep(configs, store.create(), todo=4, started=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: 130.0)
    assert sweep.seconds_left() is None
    with store.lock(configs[1]) as lock:
        lock.report(RunProgress(3, 5, 1, 1, 0.5))
        assert sweep.running() == {configs[1]: RunProgress(3, 5, 1, 1, 0.5)}
        sweep.settled = 1
        assert sweep.seconds_left() == pytest.approx(30 * 2.5 / 1.5)


def test_a_run_says_how_far_it_is_while_it_runs(store, monkeypatch):
    monkeypatch.setattr(complete_module, "REPORT_SECONDS", 0.0)
    config, seen = quick()[0], []
    store.create()
    complete(config, store, on_event=lambda *_: seen.append(*store.progress().values()))
    shares = [at.share for at in seen]
    assert shares == sorted(shares)
    assert (shares[0] > 0, shares[-1], seen[-1].task) == (True, 1.0, 5)
    assert store.progress() == {}


# --- several at once, and sudden ends -----------------------------------------------------------


def command(store, *args):
    config = store.path.parent / "twelve.toml"
    config.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in TWELVE.items()))
    program = [sys.executable, "-c", "from gradmix.cli import main; main()"]
    return [*program, "sweep", str(config), "--out", str(store.path), *args]


def twelve():
    return [
        config_for("digits", mix=mix, seed=seed, epochs=1)
        for mix in TWELVE["mix"]
        for seed in range(6)
    ]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=600):
    """Patience is for machines that do much else."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    assert found


@pytest.fixture
def start(store):
    """Starts sweeps of the twelve, which do not outlive the test."""
    begun = []

    def start(*args, **kwargs):
        begun.append(subprocess.Popen(command(store, *args), **kwargs))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def pid_in(path):
    try:
        return json.loads(path.read_text())["pid"]
    except (OSError, ValueError):
        return None


def at_work(store, process):
    """Whether a worker of this process has taken up a run."""
    pids = [pid_in(path) for path in (store.path / "running").glob("*")]
    return any(pid in children(process.pid) for pid in pids)


@linux_only
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_at_random_it_ends_with_the_results_of_an_undisturbed_sweep(
    store, start, tmp_path, times
):
    moments, kept = random.Random(20), []
    for _ in range(times):
        process = start("--jobs", "2", stderr=subprocess.DEVNULL)
        wait_until(partial(at_work, store, process))  # before that a kill would show nothing
        time.sleep(moments.uniform(0, 0.8))
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # it was not finished before
        wait_until(lambda: not any(map(alive, workers)))  # noqa: B023
        kept.append(len(store.results()))
    assert kept == sorted(kept)
    assert kept[-1] < 12
    assert run_sweep(twelve(), store).count("done", "kept") == 12
    undisturbed = run_sweep(twelve(), ResultStore(tmp_path / "undisturbed"))
    found = [without_times(store.find(config)) for config in twelve()]
    assert found == list(map(without_times, undisturbed.results))
    assert files(store) == sorted([MARKER, *(store.path_of(c).name for c in twelve())])


@pytest.mark.slow
def test_two_sweeps_share_a_store_and_the_work(store):
    lines = []

    def follow():
        process = subprocess.run(command(store, "--json"), capture_output=True, text=True)
        lines.extend(json.loads(line) for line in process.stdout.splitlines())

    both = [threading.Thread(target=follow) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    done = [
        (line["config"]["mix"], line["config"]["seed"])
        for line in lines
        if line["status"] == "done"
    ]
    assert len(lines) == 24
    assert len(done) == len(set(done)) == 12  # each run once, by one of them
    assert {line["status"] for line in lines} == {"done", "kept"}
    assert files(store) == sorted([MARKER, *(store.path_of(c).name for c in twelve())])


@linux_only
@pytest.mark.parametrize(
    "moment", [pytest.param("workers start", marks=pytest.mark.slow), "runs are at work"]
)
def test_ctrl_c_ends_all_at_once_and_keeps_what_is_finished(store, start, moment):
    # In a session of its own, so that the signal goes to all of it, as from a terminal.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = start("--jobs", "2", "--epochs", "2000", start_new_session=True, **pipes)
    wait_until(lambda: len(children(process.pid)) >= 3)  # two workers, and loky's tracker
    if moment == "runs are at work":
        wait_until(partial(at_work, store, process))
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped: 0 of 12 runs are finished;" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not any(map(alive, workers)))
    assert files(store) == [MARKER]


def kill_whoever_computes(store, config, times):
    """A thread that kills the process at work on a run, so many times."""
    path = store.path / "running" / store.path_of(config).stem

    def watch():
        for _ in range(times):
            wait_until(lambda: pid_in(path) not in (None, os.getpid(), *killed))
            killed.append(pid_in(path))
            os.kill(killed[-1], signal.SIGKILL)

    killed = []
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


class DiesOnce:
    """In place of `compute`: computes here, except that the worker of one run dies once."""

    def __init__(self, store, config):
        self.store, self.config, self.calls = store, config, []

    def __call__(self, work, items, engine):
        self.calls.append(list(items))
        for config in items:
            if config == self.config and len(self.calls) == 1:
                running = self.store.path / "running"
                running.mkdir(exist_ok=True)
                (running / f".{self.store.path_of(config).stem}.lock").touch()
                raise WorkerError("a worker process died")
            yield work(config)


def test_the_run_of_a_worker_that_died_is_repeated_alone(store, monkeypatch):
    configs = quick(range(3))
    compute = DiesOnce(store.create(), configs[1])
    monkeypatch.setattr(sweep_module, "compute", compute)
    sweep = run_sweep(configs, store, jobs=2)
    assert compute.calls == [configs, [configs[1]], [configs[2]]]
    assert sweep.count("done") == 3
    assert files(store) == sorted([MARKER, *(store.path_of(c).name for c in configs)])


@pytest.mark.slow
def test_a_worker_that_dies_once_costs_nothing(store):
    configs = quick(range(4))
    store.create()
    killer = kill_whoever_computes(store, configs[1], times=1)
    sweep = run_sweep(configs, store, jobs=2)
    killer.join(timeout=120)
    assert not killer.is_alive()
    assert sweep.count("done", "kept") == 4  # kept: saved just before the other worker died
    assert files(store) == sorted([MARKER, *(store.path_of(c).name for c in configs)])


@pytest.mark.slow
def test_a_run_that_always_kills_its_worker_is_named_and_the_others_go_on(store):
    configs = quick(range(4))
    store.create()
    killer = kill_whoever_computes(store, configs[1], times=2)
    sweep = run_sweep(configs, store, jobs=2)
    killer.join(timeout=120)
    assert (sweep.count("done", "kept"), sweep.count("failed")) == (3, 1)
    (failure,) = sweep.failures
    assert failure.config["seed"] == 1
    assert failure.error == "WorkerError"
    assert "died (SIGKILL(-9)) while it computed this run alone" in failure.message


def test_workers_that_cannot_even_begin_end_the_sweep(store, monkeypatch):
    def dies(*_):
        raise WorkerError("a worker process died")
        yield

    monkeypatch.setattr(sweep_module, "compute", dies)
    with pytest.raises(WorkerError, match="before any run began; try fewer jobs"):
        run_sweep(quick(), store, jobs=2)
