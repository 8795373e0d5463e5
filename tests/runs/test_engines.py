"""Sweeps on executors: the standard library's, dask's and a broken one."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack

import pytest

from gradmix import ResultStore, config_for, run_sweep
from gradmix.errors import InputError, WorkerError
from gradmix.runs import workers
from gradmix.runs.workers import compute, dask_engine, engine_of, loky_engine


def configs(count):
    return [config_for("digits", mix="none", epochs=1, seed=seed) for seed in range(count)]


def accuracies(store):
    return {result.config["seed"]: result.accuracy for result in store.results()}


@pytest.fixture
def alone(tmp_path):
    """The results of two runs in this process."""
    store = ResultStore(tmp_path / "alone")
    run_sweep(configs(2), store)
    return accuracies(store)


def test_any_executor_computes_a_sweep_and_stays_open(alone, tmp_path):
    store = ResultStore(tmp_path / "threads")
    with ThreadPoolExecutor(1) as executor:
        run_sweep(configs(2), store, executor=executor)
        assert executor.submit(int, "3").result() == 3
    assert accuracies(store) == alone


def test_results_of_workers_with_another_file_system_are_saved_here(tmp_path, monkeypatch):
    store = ResultStore(tmp_path / "here")
    saved = []
    monkeypatch.setattr(ResultStore, "save", lambda self, result: saved.append(result))
    with ThreadPoolExecutor(1) as executor:
        run_sweep(configs(1), store, executor=executor)
    assert len(saved) == 2  # by the worker, whose file is not here, and then by the sweep


def test_an_executor_that_breaks_ends_the_sweep_with_a_remedy(tmp_path):
    class Broken(ThreadPoolExecutor):
        def submit(self, work, /, *args):
            def lost():
                raise BrokenProcessPool("a process was terminated")

            return super().submit(lost)

    with Broken(1) as executor, pytest.raises(WorkerError, match="start the sweep again"):
        run_sweep(configs(1), ResultStore(tmp_path), executor=executor)


def test_more_devices_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    with pytest.raises(InputError, match="is 4, and this machine has 3 GPUs"):
        loky_engine(2, devices_per_run=2)


def test_each_worker_sees_its_own_devices(monkeypatch, tmp_path):
    def visible(number):
        import os
        import time

        (tmp_path / str(number)).touch()
        while not (tmp_path / str(1 - number)).exists():  # so that one worker does not do both
            time.sleep(0.02)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert set(compute(visible, [0, 1], loky_engine(2, devices_per_run=2))) == {"0,1", "2,3"}


def test_a_slot_belongs_to_one_worker(tmp_path, monkeypatch):
    for slot in range(2):
        monkeypatch.setattr(workers, "_held", held := ExitStack())
        assert workers._take_slot(tmp_path, 2) == slot
    with pytest.raises(WorkerError, match="all 2 worker slots"):
        workers._take_slot(tmp_path, 2)
    held.close()  # of the second worker
    assert workers._take_slot(tmp_path, 2) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_results_of_this_process(alone, tmp_path):
    store = ResultStore(tmp_path / "dask")
    run_sweep(configs(2), store, engine=dask_engine(None, 2))
    assert accuracies(store) == alone


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_repeats_the_runs_of_killed_workers(tmp_path):
    distributed = pytest.importorskip("distributed")
    loky, store = ResultStore(tmp_path / "loky"), ResultStore(tmp_path / "dask")
    run_sweep(configs(12), loky, jobs=2)
    killed = []

    def kill_twice(sweep, outcome):
        if outcome is not None and len(killed) < 2:
            pids = {nanny.pid for nanny in cluster.workers.values()} - {None, *killed}
            killed.append(min(pids))
            os.kill(killed[-1], signal.SIGKILL)

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False)
        run_sweep(configs(12), store, executor=executor, on_progress=kill_twice)
    assert len(killed) == 2
    assert len(accuracies(store)) == 12
    assert accuracies(store) == accuracies(loky)


def test_an_engine_of_the_user_is_not_opened_again():
    assert not engine_of(ThreadPoolExecutor(1)).restarts
    assert loky_engine(2).restarts
