"""gradmix run: one configuration, for every seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from gradmix._setting_types import seed_range
from gradmix.cli.settings import (
    Again,
    Checkpoint,
    Controls,
    Imports,
    Out,
    Seeds,
    chosen_runs,
    with_settings,
)
from gradmix.cli.terminal import (
    follow,
    label_column,
    messages,
    output,
    print_table,
    printable,
    run_label,
    show_results,
    showing_progress,
)
from gradmix.runs.statistics import summarize

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore


@with_settings
def run(
    data: Annotated[list[str], typer.Option(help="Data sets; see `gradmix list`.")],
    seeds: Seeds = None,
    imports: Imports = None,
    controls: Controls = False,
    out: Out = "runs",
    again: Again = False,
    checkpoint: Checkpoint = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    **settings: Any,
) -> None:
    """Learn a data set class by class, once per seed, and write a result file for each.

    The defaults are the paper's protocol for the data set. Settings with several values run in
    every combination, one after another. Runs that OUT already has are not repeated. A stopped run
    resumes from its last checkpoint, with identical results.
    """
    from gradmix.runs.store import ResultStore

    configs, _ = chosen_runs(data, seeds, settings, imports=imports, controls=controls)
    store = ResultStore(out)
    results, finished = run_all(configs, store, again=again, checkpoint=checkpoint)
    if as_json:
        print(json.dumps([_summary(result, store) for result in results], indent=2))  # noqa: T201
    elif results:
        _show(results)
        output.print(f"results in {store.path}", soft_wrap=True)
    if not finished:
        raise typer.Exit(130)


def _show(results: Sequence[RunResult]) -> None:
    """Print one row with the main metrics, or a comparison of several configurations."""
    first = {**results[0].config, "seed": None}
    if all({**result.config, "seed": None} == first for result in results):
        label = f"{first['data']} {first['method']} {first['mix']}"
        print_table(results_table({label: results}))
        return
    from gradmix.runs.comparisons import comparison_table
    from gradmix.runs.groups import group_results

    show_results(comparison_table(group_results(results)).text())


def run_all(
    configs: Sequence[RunConfig],
    store: ResultStore | None,
    *,
    again: bool = False,
    checkpoint: bool = True,
) -> tuple[list[RunResult], bool]:
    """Compute the runs that the store lacks; return the results, and whether all finished."""
    results: list[RunResult] = []
    try:
        for config in configs:
            known = None if store is None or again else store.find(config)
            if known is not None:
                _say(config, "skipped, OUT has it (--again repeats it)")
            results.append(known or _run_one(config, store, again, checkpoint))
    except KeyboardInterrupt:
        if store is not None:  # where a run may have finished just before
            results = [known for config in configs if (known := store.find(config)) is not None]
        done = f"{len(results)} of {len(configs)} runs are finished"
        messages.print(f"stopped: {done}; the same command resumes", soft_wrap=True)
        return results, False
    return results, True


def _run_one(
    config: RunConfig, store: ResultStore | None, again: bool, checkpoint: bool
) -> RunResult:
    from gradmix.runs.run import complete, prepare_run, train

    training = prepare_run(config)  # impossible runs end here, before anything is written
    with showing_progress() as progress:
        observe = follow(progress, config, every_task=store is not None)
        if store is None:
            return train(config, training, observe)
        store.create().tidy()
        outcome = complete(
            config,
            store,
            training=training,
            again=again,
            checkpoint=checkpoint,
            wait=True,
            raising=True,
            on_event=observe,
            say=partial(_say, config),
        )
    assert outcome.result is not None
    return outcome.result


def _say(config: RunConfig, text: str) -> None:
    messages.print(f"{run_label(config)}: {text}", soft_wrap=True, markup=False)


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
    return f"{values[0]:.3f}" if len(values) == 1 else summarize(values).text()
