"""gradmix run: one configuration, for every seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix._setting_types import seed_range
from gradmix.cli.settings import (
    TEXTS,
    Again,
    Checkpoint,
    Controls,
    Imports,
    LogEvery,
    Logs,
    Out,
    Seeds,
    chosen_runs,
    with_settings,
)
from gradmix.cli.terminal import (
    follow,
    label_column,
    photo_counter,
    print_table,
    printable,
    remark,
    run_label,
    show,
    show_results,
    showing_progress,
)
from gradmix.errors import FileInUseError

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore
    from gradmix.training.launch import Devices, Job


@with_settings
def run(
    data: Annotated[list[str], typer.Option(metavar=TEXTS, help="Data sets; see `gradmix list`.")],
    seeds: Seeds = None,
    imports: Imports = None,
    controls: Controls = False,
    out: Out = "runs",
    again: Again = False,
    checkpoint: Checkpoint = True,
    devices: Annotated[
        int, typer.Option(help="Devices of each machine that compute a run together.")
    ] = 1,
    nodes: Annotated[int, typer.Option(help="Machines; several need torchrun or srun.")] = 1,
    sync_batchnorm: Annotated[
        bool,
        typer.Option("--sync-batchnorm", help="BatchNorm uses the statistics of the whole batch."),
    ] = False,
    log: Logs = None,
    log_every: LogEvery = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    **settings: Any,
) -> None:
    """Learn a data set class by class, once per seed, and write a result file for each.

    The defaults are the paper's protocol for the data set. Settings with several values run in
    every combination, one after another. Runs that OUT already has are not repeated. A stopped run
    resumes from its last checkpoint, with identical results. With --devices, several processes
    compute each run together, to the same result.
    """
    from gradmix.loggers import LogTo
    from gradmix.runs.store import ResultStore

    configs, _ = chosen_runs(data, seeds, settings, imports=imports, controls=controls)
    store = ResultStore(out)
    logs = LogTo(tuple(log), log_every) if log else None
    how: Any = {"again": again, "checkpoint": checkpoint, "log": logs}
    if devices == nodes == 1:
        results, finished = run_all(configs, store, **how)
    else:
        from gradmix.training.launch import Devices

        wanted = Devices(devices, nodes, sync_batchnorm)
        results, finished = _run_together(configs, store, wanted, **how)
    if as_json:
        print(json.dumps([_summary(result, store) for result in results], indent=2))  # noqa: T201
    elif results:
        _show(results)
        show(f"results in {store.path}")
    if not finished:
        raise typer.Exit(130)


def _show(results: Sequence[RunResult]) -> None:
    """Print one row with the main metrics, or a comparison of several configurations."""
    first = {**results[0].config, "seed": None}
    if all({**result.config, "seed": None} == first for result in results):
        label = f"{first['data']} {first['method']} {first['mix']}"
        print_table(results_table({label: results}))
        return
    from gradmix.runs.groups import group_results
    from gradmix.runs.tables import comparison_table

    show_results(comparison_table(group_results(results)).text())


def run_all(
    configs: Sequence[RunConfig],
    store: ResultStore | None,
    job: Job | None = None,
    *,
    again: bool = False,
    **how: Any,
) -> tuple[list[RunResult], bool]:
    """Compute the runs that the store lacks.

    Args:
        configs: The runs.
        store: The store of the results; None stores nothing.
        job: The ranks that compute each run together; None: this process alone.
        again: Compute runs even if the store has their results.
        **how: Other arguments of `gradmix.runs.run.complete`.

    Returns:
        The results, and whether all runs finished.
    """
    results: list[RunResult] = []
    try:
        for config in configs:
            known = None if store is None or again else store.find(config)
            if known is not None:
                _say(config, "skipped, OUT has it (--again repeats it)")
            if job is not None:
                job.ranks.from_first(int(known is None))
            results.append(known or _run_one(config, store, job, again=again, **how))
    except KeyboardInterrupt:
        if store is not None:  # where a run may have finished just before
            results = [known for config in configs if (known := store.find(config)) is not None]
        done = f"{len(results)} of {len(configs)} runs are finished"
        remark(f"stopped: {done}; the same command resumes")
        return results, False
    return results, True


def _run_together(
    configs: Sequence[RunConfig],
    store: ResultStore,
    wanted: Devices,
    *,
    checkpoint: bool,
    **how: Any,
) -> tuple[list[RunResult], bool]:
    """Do as `run_all` does, on several devices; ranks other than 0 show nothing and exit."""
    from gradmix.plugins import registered
    from gradmix.runs.run import follow_runs, one_device
    from gradmix.training.launch import open_job

    device, precision = one_device(configs)
    follow = partial(follow_runs, registered(), configs, store if checkpoint else None)
    results: list[RunResult] = []
    finished, first = False, True
    with suppress(KeyboardInterrupt), open_job(device, precision, wanted, follow) as job:
        first = job.ranks.first
        if first:
            results, finished = run_all(configs, store, job, checkpoint=checkpoint, **how)
            if not finished:  # the other ranks are in the middle of a step
                raise KeyboardInterrupt
        else:
            follow(job)
    if not first:
        raise typer.Exit
    return results, finished


def _run_one(
    config: RunConfig, store: ResultStore | None, job: Job | None, **how: Any
) -> RunResult:
    from gradmix.runs.run import complete, prepare_run, train

    with showing_progress() as progress:
        observe = follow(progress, config, every_task=store is not None)
        on_photo = photo_counter(progress) if config.frozen else None
        training = prepare_run(config, job=job, on_photo=on_photo)  # impossible runs write nothing
        if store is None:
            return train(config, training, observe)
        store.create().tidy()
        outcome = complete(
            config,
            store,
            training=training,
            wait=job is None,
            raising=True,
            on_event=observe,
            say=partial(_say, config),
            **how,
        )
    if outcome.result is None:
        raise FileInUseError(f"{run_label(config)}: another process computes it")
    return outcome.result


def _say(config: RunConfig, text: str) -> None:
    remark(f"{run_label(config)}: {text}")


def _summary(result: RunResult, store: ResultStore) -> dict[str, Any]:
    from gradmix.runs.results import result_name

    return {
        "file": str(store.path / result_name(result.config)),
        "config": result.config,
        "metrics": result.metrics,
        "seconds": result.seconds,
    }


def results_table(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """Return a table with one row per label: the main metrics over its results."""
    columns = ("average accuracy", "final accuracy", "forgetting")
    numbers = [Column(name, no_wrap=True) for name in ("seeds", *columns, "seconds")]
    table = Table(label_column(""), *numbers)
    for label, results in rows.items():
        metric = {
            key: _metric_text([result.metrics[key] for result in results])
            for key in ("average_accuracy", "final_accuracy", "forgetting_from_best")
        }
        seeds = seed_range([result.config["seed"] for result in results])
        seconds = statistics.fmean(result.seconds["total"] for result in results)
        table.add_row(Text(printable(label)), seeds, *metric.values(), f"{seconds:.1f}")
    return table


def _metric_text(values: Sequence[float]) -> str:
    from gradmix.runs.measures import summarize

    return f"{values[0]:.3f}" if len(values) == 1 else summarize(values).text()
