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
    from gradmix.runs.run import Outcome
    from gradmix.runs.sweep import Sweep


@with_settings(lists=True)
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml", help="File of grids; options replace its settings."),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Data sets; see `gradmix list`.")] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Seeds, such as 0 1 2 or 0-4. Default: 0.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs to compute at once, each in a process.")] = 1,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    again: Annotated[bool, typer.Option(help="Repeat runs that OUT already has.")] = False,
    retry_failed: Annotated[bool, typer.Option(help="Repeat runs that failed earlier.")] = False,
    skip_impossible: Annotated[
        bool, typer.Option(help="Skip combinations that are not possible.")
    ] = False,
    checkpoint: Annotated[
        bool, typer.Option(help="Save checkpoints, and resume stopped runs from them.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per run.")
    ] = False,
    **settings: Any,
) -> None:
    """Run every combination of the given values, and write a result file for each.

    Runs that OUT already has are not repeated. A stopped sweep resumes from its checkpoints.
    Several sweeps may share OUT.
    """
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import run_sweep

    configs, skipped = _configs(file, data, seeds, settings, skip_impossible)
    for name, reason in skipped.items():
        messages.print(f"skipped: {name}: {reason}", soft_wrap=True, markup=False)
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
    """Return the runs, and the impossible combinations with the reason."""
    from gradmix._setting_types import parse_seeds
    from gradmix.runs.grid import expand, read_grids

    axes = chosen_lists(settings)
    axes |= {"data": list(data)} if data else {}
    axes |= {"seed": parse_seeds(seeds)} if seeds else {}
    if file is None and not data:
        raise InputError("nothing to run; give --data or a file such as CONFIG.toml")
    grids = [axes] if file is None else read_grids(file, **axes)
    return expand(grids, skip_impossible)


def _line(state: Sweep, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a run and the progress of the sweep, for JSON output."""
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
    """Print means over the seeds, and which runs are missing and why."""
    from gradmix.runs.comparisons import comparison_table
    from gradmix.runs.groups import group_results

    if state.results and not as_json:
        show_results(comparison_table(group_results(state.results)).text())
        output.print(f"results in {state.store.path}", soft_wrap=True)
    done, total = len(state.results), len(state.configs)
    if stopped:
        messages.print(
            f"stopped: {done} of {total} runs are finished; the same command resumes",
            soft_wrap=True,
        )
    if state.failures:
        messages.print(
            f"{len(state.failures)} of {total} runs failed; `gradmix results {state.store.path} "
            "--failed` shows why, --retry-failed repeats them",
            soft_wrap=True,
        )
