"""gradmix run: one configuration, for every seed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradmix.cli.settings import chosen, with_settings
from gradmix.cli.terminal import (
    follow,
    messages,
    output,
    print_table,
    results_table,
    showing_progress,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from gradmix.runs.config import RunConfig
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore


@with_settings(lists=False)
def run(
    data: Annotated[str, typer.Option(help="Data set: see `gradmix list`.")],
    seeds: Annotated[
        list[str] | None, typer.Option(help="Like 0 1 2 or 0-4; 0 by default.")
    ] = None,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    again: Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")] = False,
    checkpoint: Annotated[
        bool, typer.Option(help="Keep runs while they last, and go on with those stopped.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    **settings: Any,
) -> None:
    """Learn a data set class by class, once for every seed, and write a result file for each.

    Defaults are the paper's protocol for the data set. Finished runs are kept: what OUT
    already has is not repeated. A run that was stopped, in whatever way, goes on where it was half
    a minute before, at most, to the same result.
    """
    from gradmix.runs.config import configs_for_seeds
    from gradmix.runs.seeds import parse_seeds
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import find_impossible

    configs = configs_for_seeds(data, parse_seeds(seeds or ["0"]), **chosen(settings))
    for error in find_impossible(configs).values():
        raise error
    store = ResultStore(out).create()
    store.tidy()
    results, finished = run_all(configs, store, again=again, checkpoint=checkpoint)
    if as_json:
        print(json.dumps([_summary(result, store) for result in results], indent=2))  # noqa: T201
    elif results:
        label = f"{data} {configs[0].method} {configs[0].mix}"
        print_table(results_table({label: results}))
        output.print(f"results in {store.path}", soft_wrap=True)
    if not finished:
        raise typer.Exit(130)


def run_all(
    configs: Sequence[RunConfig],
    store: ResultStore | None,
    *,
    again: bool = False,
    checkpoint: bool = True,
) -> tuple[list[RunResult], bool]:
    """Run what the store lacks; results so far, and whether all of them."""
    results: list[RunResult] = []
    try:
        with showing_progress() as progress:
            for config in configs:
                known = None if store is None or again else store.find(config)
                if known is not None:
                    messages.print(f"seed {config.seed}: kept from before (--again repeats it)")
                results.append(known or _run_one(config, store, progress, again, checkpoint))
    except KeyboardInterrupt:
        if store is not None:  # where one may have come just before
            results = [known for config in configs if (known := store.find(config)) is not None]
        done = f"{len(results)} of {len(configs)} runs are finished and kept"
        messages.print(f"stopped: {done}; the same command goes on", soft_wrap=True)
        return results, False
    return results, True


def _run_one(
    config: RunConfig,
    store: ResultStore | None,
    progress: Progress,
    again: bool,
    checkpoint: bool,
) -> RunResult:
    from gradmix.runs.run import load_benchmark
    from gradmix.runs.run import run as compute
    from gradmix.runs.sweep import WAIT_SECONDS, complete, dataset

    observe = follow(progress, config, every_task=store is not None)
    if store is None:
        return compute(config, observe, load_benchmark(config, dataset(config.data)))

    def say(text: str) -> None:
        messages.print(f"seed {config.seed}: {text}", soft_wrap=True, markup=False)

    finish = partial(
        complete, config, store, on_event=observe, raising=True, checkpoint=checkpoint, say=say
    )
    outcome = finish(again=again)
    if outcome.status == "busy":
        messages.print(f"seed {config.seed}: waiting for another process that is at it")
    while outcome.status == "busy":
        time.sleep(WAIT_SECONDS)
        outcome = finish()
    assert outcome.result is not None  # neither busy nor failed
    return outcome.result


def _summary(result: RunResult, store: ResultStore) -> dict[str, Any]:
    from gradmix.runs.results import result_name

    return {
        "file": str(store.path / result_name(result.config)),
        "config": result.config,
        "metrics": result.metrics,
        "seconds": result.seconds,
    }
