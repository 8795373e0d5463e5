"""Many runs, such as those of a grid: compute those that the store lacks, in several processes.

A sweep may be stopped at any moment, even by SIGKILL, and started again. Several sweeps may share a
store.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gradmix._setting_types import parse_seeds
from gradmix.errors import FileError, InputError, UnknownNameError, WorkerError
from gradmix.files.schema import read_bytes
from gradmix.loggers import LogTo
from gradmix.plugins import Plugin, import_plugins, registered, restore
from gradmix.randomness import RandomStreams
from gradmix.runs.config import Grid, RunConfig
from gradmix.runs.groups import grouped
from gradmix.runs.results import RunResult
from gradmix.runs.run import (
    WAIT_SECONDS,
    Outcome,
    build_method,
    complete,
    kept_dataset,
    load_benchmark,
)
from gradmix.runs.store import FailedRun, ResultStore, RunProgress
from gradmix.runs.workers import Engine, compute, engine_of, loky_engine
from gradmix.settings import DEFAULTS, CriterionSettings, MixSettings, TrainingSettings
from gradmix.training.build import make_fabric

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass
class Sweep:
    """The state of a sweep."""

    configs: Sequence[RunConfig]
    store: ResultStore
    outcomes: dict[RunConfig, Outcome] = field(default_factory=dict)
    settled: int = 0  # runs that were computed so far …
    todo: int = 0  # … of these
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._by_name = {self.store.path_of(config).stem: config for config in self.configs}

    def count(self, *statuses: str) -> int:
        """Return how many runs have one of these outcomes."""
        return sum(outcome.status in statuses for outcome in list(self.outcomes.values()))

    @property
    def results(self) -> list[RunResult]:
        """The results so far, in the order of the configurations."""
        return [outcome.result for outcome in self._in_order() if outcome.result is not None]

    @property
    def failures(self) -> list[FailedRun]:
        """The failed runs so far, in the order of the configurations."""
        return [outcome.failure for outcome in self._in_order() if outcome.failure is not None]

    def _in_order(self) -> list[Outcome]:
        return [self.outcomes[config] for config in self.configs if config in self.outcomes]

    def running(self) -> dict[RunConfig, RunProgress | None]:
        """Return the progress of the runs that this or another sweep computes now."""
        return {
            self._by_name[name]: progress
            for name, progress in self.store.progress().items()
            if name in self._by_name and self._by_name[name] not in self.outcomes
        }

    def seconds_left(self) -> float | None:
        """Return the remaining time, estimated from the runs so far; None without any."""
        begun = sum(p.share for p in self.running().values() if p is not None)
        done = self.settled + begun
        elapsed = time.monotonic() - self.started
        return elapsed * (self.todo - done) / done if done else None


OnProgress = Callable[[Sweep, Outcome | None], object]


def run_sweep(
    configs: Iterable[RunConfig],
    store: ResultStore,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    engine: Engine | None = None,
    again: bool = False,
    retry_failed: bool = False,
    skip_impossible: bool = False,
    checkpoint: bool = True,
    imports: Sequence[str] = (),
    log: LogTo | None = None,
    on_progress: OnProgress | None = None,
) -> Sweep:
    """Complete the results of all configurations.

    All runs are checked before the first one starts.

    Args:
        configs: The runs.
        store: The store of their results.
        jobs: How many runs to compute at once, each in a process.
        executor: Any `concurrent.futures.Executor` to compute the runs with, instead of `jobs`
            processes of this machine. It stays open.
        engine: Opens an executor, such as `dask_engine`; it replaces `jobs`, too.
        again: Compute runs even if the store has their results or checkpoints.
        retry_failed: Compute runs again that failed earlier.
        skip_impossible: Skip runs that their data, network, method or device does not allow.
        checkpoint: Save checkpoints, and resume from earlier ones.
        imports: Modules that register plugins. Plugins that are registered already need none.
        log: Where losses and accuracies are written during the runs, under the name of each.
        on_progress: Called before the first run, and with the outcome of each run.

    Returns:
        The sweep with the outcome of every run.

    Raises:
        InputError: If a run is impossible and `skip_impossible` is false, or if a module cannot be
            imported.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; give 1 or more")
    if executor is not None:
        engine = engine_of(executor)
    elif engine is None and jobs > 1:
        engine = loky_engine(jobs)
    import_plugins(imports)
    sweep = Sweep(list(dict.fromkeys(configs)), store)
    known: dict[RunConfig, Outcome] = {}

    tell = on_progress or (lambda sweep, outcome: None)

    def settle(outcome: Outcome) -> None:
        sweep.outcomes[outcome.config] = outcome
        tell(sweep, outcome)

    for config in sweep.configs:
        result = None if again else store.find(config)
        failure = None if again or retry_failed or result else store.find_failure(config)
        if result is not None:
            known[config] = Outcome(config, "kept", result)
        elif failure is not None:
            known[config] = Outcome(config, "failed", failure=failure)
    impossible = find_impossible(config for config in sweep.configs if config not in known)
    if impossible and not skip_impossible:
        raise next(iter(impossible.values()))
    store.create()
    store.tidy()
    for config, error in impossible.items():
        known[config] = Outcome(config, "impossible", reason=str(error))
    for config in sweep.configs:
        if config in known:
            settle(known[config])
    todo = _by_data(config for config in sweep.configs if config not in known)
    if engine is not None:
        kept_dataset.cache_clear()  # the workers load their own
    sweep.todo, sweep.started = len(todo), time.monotonic()
    tell(sweep, None)
    try:
        how = {"again": again, "checkpoint": checkpoint, "log": log}
        work = partial(_complete_with, registered(), store, how)
        _complete_all(todo, sweep, work, engine, settle)
    finally:
        store.tidy()  # after workers that were killed
    return sweep


def _complete_with(
    plugins: Sequence[Plugin], store: ResultStore, how: Mapping[str, Any], config: RunConfig
) -> Outcome:
    """Complete a run, perhaps in another process, which needs the plugins of this one."""
    restore(plugins)
    store.create()  # it may be on another file system
    return complete(config, store, **how)


def _by_data(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Return the runs grouped by data set, so that a process loads each data set once."""
    groups = grouped(configs, lambda config: config.data)
    return [config for group in groups.values() for config in group]


def _complete_all(
    todo: Sequence[RunConfig],
    sweep: Sweep,
    work: Callable[[RunConfig], Outcome],
    engine: Engine | None,
    settle: Callable[[Outcome], None],
) -> None:
    """Complete all runs, also when workers die or other sweeps compute some of them."""
    left = dict.fromkeys(todo)

    def take(outcome: Outcome) -> None:
        if outcome.status != "busy":
            del left[outcome.config]
            sweep.settled += 1
            if outcome.result is not None and not sweep.store.path_of(outcome.config).exists():
                sweep.store.save(outcome.result)  # the worker has another file system
            settle(outcome)

    while left:
        before = len(left)
        try:
            for outcome in compute(work, list(left), engine):
                take(outcome)
        except WorkerError as error:
            if engine is None or not engine.restarts:
                raise WorkerError(
                    f"{error}; the store has all finished runs: start the sweep again with a new "
                    "executor"
                ) from error
            suspects = [config for config in left if sweep.store.free_if_abandoned(config)]
            if not suspects:
                raise WorkerError(f"{error} before any run began; try fewer jobs") from error
            for config in suspects:  # repeated alone, a run fails if its worker dies again
                try:
                    [outcome] = compute(work, [config], engine)
                except WorkerError as repeated:
                    sweep.store.free_if_abandoned(config)
                    died = f"{repeated} while it computed this run alone; is there enough memory?"
                    failure = sweep.store.save_failure(config, WorkerError(died))
                    outcome = Outcome(config, "failed", failure=failure)
                take(outcome)
        if len(left) == before:  # other sweeps compute all of them
            time.sleep(WAIT_SECONDS)


UNCHECKED = {
    "seed",
    *MixSettings.model_fields,
    *CriterionSettings.model_fields,
    *(name for name in TrainingSettings.model_fields if name != "head"),
}
"""The settings that do not decide whether a run is possible: their values are valid anyway."""


def find_impossible(configs: Iterable[RunConfig]) -> dict[RunConfig, InputError]:
    """Return the runs that their data, network, method or device does not allow, and why.

    Each data set is loaded once, and downloaded if necessary.
    """
    answers: dict[tuple[object, ...], InputError | None] = {}
    impossible = {}
    for config in _by_data(configs):
        key = tuple(value for name, value in config if name not in UNCHECKED)
        if key not in answers:
            answers[key] = None
            try:
                make_fabric(config.device, config.precision)
                benchmark = load_benchmark(config, keep=True)
                build_method(config, benchmark, RandomStreams(config.seed, torch.device("cpu")))
            except InputError as error:
                names = f"data {config.data}, method {config.method}, model {config.model}"
                answers[key] = InputError(f"{names}: {error}")
        reason = answers[key]
        if reason is not None:
            impossible[config] = reason
    return impossible


# --- grids in TOML files: settings with several values each ---------------------------------------

MOST_BYTES = 1 << 20
MOST_NESTED = 100  # opening brackets in a row; Python's parser is recursive


def read_grids(path: str | os.PathLike[str], **overrides: list[Any]) -> list[Grid]:
    """Return the grids of a TOML file: one per `[[grid]]`, or a single one without any.

    Settings before the first `[[grid]]` apply to all grids. A list means several values; for a
    setting that is a list itself, a list of lists does. `import` names modules that register
    plugins; they are imported. The overrides replace values in the file.

    Raises:
        InputError: If the file cannot be read or has an unknown or empty setting.
    """
    name = os.fspath(path)
    try:
        text = read_bytes(name, MOST_BYTES).decode()
        if "[" * MOST_NESTED in "".join(text.split()):
            raise ValueError("the lists are nested too deeply")
        content = tomllib.loads(text)
    except (FileError, ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be read as TOML: {error}") from error
    modules = content.pop("import", [])
    if isinstance(modules, str):
        modules = [modules]
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise InputError(f"{name}: import is {modules!r}; name modules")
    import_plugins(modules)
    tables = content.pop("grid", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{name}: grid must be tables, each begun by [[grid]]")
    return [
        {**_axes(name, content), **_axes(name, table), **overrides}  # the last one counts
        for table in tables
    ]


def _axes(name: str, table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each setting in a table."""
    if "seed" in table and "seeds" in table:
        raise InputError(f"{name} has both seed and seeds; give one of them")
    axes = {}
    for key, value in table.items():
        if value == []:
            raise InputError(f"{name}: {key} is an empty list; give at least one value")
        if key == "seeds":
            axes["seed"] = parse_seeds(value if isinstance(value, list) else [value])
        elif key in RunConfig.model_fields:
            axes[key] = axis(key, value)
        else:
            known = [*RunConfig.model_fields, "grid", "import", "seeds"]
            raise UnknownNameError(f"setting in {name}", key, known)
    return axes


def axis(name: str, value: Any) -> list[Any]:
    """Return the values of a setting in a TOML file.

    >>> axis("epochs", 5), axis("epochs", [5, 10])
    ([5], [5, 10])
    >>> axis("transforms", ["crop", "flip"]), axis("transforms", ["none", ["crop", "flip"]])
    ([['crop', 'flip']], ['none', ['crop', 'flip']])
    >>> axis("class_order", ["natural", "seed:1993"])
    ['natural', 'seed:1993']
    """
    if not isinstance(value, list):
        return [value]
    if name == "class_order":
        return value if any(isinstance(one, list | str) for one in value) else [value]
    if isinstance(DEFAULTS.get(name), list | dict):  # a setting that is a list itself
        return value if any(isinstance(one, list | dict) for one in value) else [value]
    return value
