"""gradmix sweep: a grid of runs, in several processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradmix.cli.settings import chosen_lists, with_settings
from gradmix.cli.terminal import SweepDisplay, messages, output, show_results
from gradmix.errors import InputError

if TYPE_CHECKING:
    from gradmix.runs.config import RunConfig
    from gradmix.runs.sweep import Outcome, Sweep


@with_settings(lists=True)
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml", help="Grids; options replace its settings."),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Data sets: see `gradmix list`.")] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Like 0 1 2 or 0-4; 0 by default.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in a process.")] = 1,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    again: Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")] = False,
    retry_failed: Annotated[bool, typer.Option(help="Repeat runs that failed.")] = False,
    skip_impossible: Annotated[
        bool, typer.Option(help="Leave out combinations without meaning.")
    ] = False,
    checkpoint: Annotated[
        bool, typer.Option(help="Keep runs while they last, and go on with those stopped.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each run as a line of JSON.")
    ] = False,
    **settings: Any,
) -> None:
    """Run every combination of the values given, and write a result file for each.

    Finished runs are kept, and unfinished ones from time to time: a sweep that was stopped, in
    whatever way, goes on where it was.
    Several sweeps may share OUT.
    """
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import run_sweep

    configs, skipped = _configs(file, data, seeds, settings, skip_impossible)
    for name, reason in skipped.items():
        messages.print(f"left out: {name}: {reason}", soft_wrap=True, markup=False)
        if as_json:
            line = {"status": "impossible", "combination": name, "reason": reason}
            print(json.dumps(line), flush=True)  # noqa: T201
    display = SweepDisplay()

    def show(state: Sweep, outcome: Outcome | None) -> None:
        display.show(state, outcome)
        if as_json and outcome is not None:
            print(json.dumps(_line(state, outcome)), flush=True)  # noqa: T201

    stopped = False
    try:
        with display:
            run_sweep(
                configs,
                ResultStore(out),
                jobs=jobs,
                again=again,
                retry_failed=retry_failed,
                skip_impossible=skip_impossible,
                checkpoint=checkpoint,
                on_progress=show,
            )
    except KeyboardInterrupt:
        stopped = True
    if display.sweep is not None:
        _conclude(display.sweep, stopped, as_json)
    if stopped:
        raise typer.Exit(130)
    if display.sweep is not None and display.sweep.failures:
        raise typer.Exit(1)


def _configs(
    file: str | None,
    data: list[str] | None,
    seeds: list[str] | None,
    settings: dict[str, Any],
    skip_impossible: bool,
) -> tuple[list[RunConfig], dict[str, str]]:
    """What is to be run, and the combinations without meaning, with the reason."""
    from gradmix.runs.grid import expand, read_grids
    from gradmix.runs.seeds import parse_seeds

    axes = chosen_lists(settings)
    axes |= {"data": list(data)} if data else {}
    axes |= {"seed": parse_seeds(seeds)} if seeds else {}
    if file is None and not data:
        raise InputError("there is nothing to run; give --data or a file like CONFIG.toml")
    grids = [axes] if file is None else read_grids(file, **axes)
    return expand(grids, skip_impossible)


def _line(state: Sweep, outcome: Outcome) -> dict[str, Any]:
    """What machines are told about a run, and where the sweep stands after it."""
    result, failure = outcome.result, outcome.failure
    line: dict[str, Any] = {"status": outcome.status, "config": outcome.config.to_json()}
    if result is not None:
        line |= {"file": str(state.store.path_of(outcome.config))}
        line |= {"metrics": result.metrics, "seconds": result.seconds}
    if failure is not None:
        line |= {"error": failure.error, "message": failure.message}
    if outcome.remark:
        line |= {"remark": outcome.remark}
    if outcome.reason:
        line |= {"reason": outcome.reason}
    return {**line, "progress": _standing(state)}


def _standing(state: Sweep) -> dict[str, Any]:
    return {
        "total": len(state.configs),
        "done": state.count("done", "kept"),
        "failed": state.count("failed"),
        "running": len(state.running()),
        "seconds_left": state.seconds_left(),
    }


def _conclude(state: Sweep, stopped: bool, as_json: bool) -> None:
    """Means over the seeds, and what is missing and why."""
    from gradmix.runs.formats import layout
    from gradmix.runs.tables import group_results

    if state.results and not as_json:
        table = layout(group_results(state.results))
        show_results(table)
        output.print(f"results in {state.store.path}", soft_wrap=True)
    done, total = len(state.results), len(state.configs)
    if stopped:
        kept = f"{done} of {total} runs are finished and kept"
        messages.print(f"stopped: {kept}; the same command goes on", soft_wrap=True)
    if state.failures:
        messages.print(
            f"{len(state.failures)} of {total} runs failed; `gradmix results {state.store.path} "
            "--failed` says why, --retry-failed repeats them",
            soft_wrap=True,
        )
