"""gradmix run: one configuration, for every seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix._setting_types import seed_range
from gradmix.cli import settings as options
from gradmix.cli.terminal import (
    follow,
    photo_counter,
    print_table,
    printable,
    remark,
    run_label,
    show,
    show_json,
    show_results,
    showing_progress,
)
from gradmix.errors import FileInUseError

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore
    from gradmix.training.launch import Devices, Job


@options.with_settings
def run(
    data: Annotated[list[str], options.several("Data sets; see `gradmix list`.")],
    seeds: options.Seeds = None,
    imports: options.Imports = None,
    controls: options.Controls = False,
    out: options.Out = "runs",
    again: options.Again = False,
    checkpoint: options.Checkpoint = True,
    devices: Annotated[
        int, typer.Option(help="Devices of each machine that compute a run together.")
    ] = 1,
    nodes: Annotated[int, typer.Option(help="Machines; several need torchrun or srun.")] = 1,
    sync_batchnorm: Annotated[
        bool,
        typer.Option("--sync-batchnorm", help="BatchNorm uses the statistics of the whole batch."),
    ] = False,
    shard_weights: Annotated[
        bool,
        typer.Option("--shard-weights", help="Each device holds a part of the weights (FSDP2)."),
    ] = False,
    log: options.Logs = None,
    log_every: options.LogEvery = None,
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
    from gradmix.runs.results import result_name
    from gradmix.runs.store import ResultStore

    configs, _ = options.chosen_runs(data, seeds, settings, imports, controls)
    store = ResultStore(out)
    logs = LogTo(tuple(log), log_every) if log else None
    how: Any = {"again": again, "checkpoint": checkpoint, "log": logs}
    if devices == nodes == 1 and not shard_weights:
        results, finished = run_all(configs, store, **how)
    else:
        from gradmix.training.launch import Devices

        wanted = Devices(devices, nodes, sync_batchnorm, shard_weights)
        results, finished = _run_together(configs, store, wanted, **how)
    if as_json:
        rows = []
        for result in results:
            row = {name: getattr(result, name) for name in ("config", "metrics", "seconds")}
            rows.append({"file": str(store.path / result_name(result.config)), **row})
        show_json(rows)
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
    """Compute the runs that the store lacks; return the results and whether all runs finished.

    `how` has the other arguments of `gradmix.runs.run.complete`.
    """
    results: list[RunResult] = []
    try:
        for config in configs:
            known = None if store is None or again else store.find(config)
            if store is not None and known is not None:
                remark(f"{run_label(config)}: skipped, {store.path} has it (--again repeats it)")
            if job is not None:
                job.ranks.from_first(int(known is None))
            results.append(known or _run_one(config, store, job, again=again, **how))
    except KeyboardInterrupt:
        if store is not None:  # where a run may have finished just before
            results = [known for config in configs if (known := store.find(config)) is not None]
        done = f"{len(results)} of {len(configs)}"
        remark(f"stopped: {done} runs are finished; the same command computes the rest")
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

    device, precision = one_device(configs, wanted)
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
    from gradmix.runs.run import complete, prepare, train

    with showing_progress() as progress:
        observe = follow(progress, config, every_task=store is not None)
        on_photo = photo_counter(progress) if config.frozen else None
        training = prepare(config, job=job, on_photo=on_photo)  # impossible runs write nothing
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
            say=lambda text: remark(f"{run_label(config)}: {text}"),
            **how,
        )
    if outcome.result is None:
        raise FileInUseError(f"{run_label(config)}: another process computes it")
    return outcome.result


def results_table(rows: Mapping[str, Sequence[RunResult]]) -> Table:
    """Return a table with one row per label: the main metrics over its results."""
    from gradmix.runs.measures import summarize

    columns = ("seeds", "average accuracy", "final accuracy", "forgetting", "seconds")
    table = Table(Column("", overflow="fold"), *(Column(name, no_wrap=True) for name in columns))
    for label, results in rows.items():
        cells = [seed_range([result.config["seed"] for result in results])]
        for key in ("average_accuracy", "final_accuracy", "forgetting_from_best"):
            values = [result.metrics[key] for result in results]
            cells.append(f"{values[0]:.3f}" if len(values) == 1 else summarize(values).text())
        seconds = statistics.fmean(result.seconds["total"] for result in results)
        table.add_row(Text(printable(label)), *cells, f"{seconds:.1f}")
    return table
