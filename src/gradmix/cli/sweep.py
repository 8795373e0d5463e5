"""gradmix sweep: a grid of runs, in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gradmix.cli.settings import (
    Again,
    Checkpoint,
    Controls,
    Data,
    Imports,
    Jobs,
    LogEvery,
    Logs,
    Out,
    RetryFailed,
    Seeds,
    chosen_runs,
    with_settings,
)
from gradmix.cli.terminal import SweepDisplay, remark, show, show_json, show_results
from gradmix.errors import InputError

if TYPE_CHECKING:
    from gradmix.runs.run import Outcome
    from gradmix.runs.sweep import Sweep
    from gradmix.runs.workers import Engine


@with_settings
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml", help="File of grids; options replace its settings."),
    ] = None,
    data: Data = None,
    seeds: Seeds = None,
    imports: Imports = None,
    controls: Controls = False,
    jobs: Jobs = 1,
    engine: Annotated[
        Literal["loky", "dask"], typer.Option(help="Processes of this machine, or a dask cluster.")
    ] = "loky",
    address: Annotated[
        str | None,
        typer.Option(help="Scheduler of a dask cluster. Default: a cluster of --jobs workers."),
    ] = None,
    devices_per_run: Annotated[
        int | None, typer.Option(min=1, help="GPUs that each run sees. Default: all.")
    ] = None,
    out: Out = "runs",
    again: Again = False,
    retry_failed: RetryFailed = False,
    skip_impossible: Annotated[bool, typer.Option(help="Skip impossible combinations.")] = False,
    checkpoint: Checkpoint = True,
    log: Logs = None,
    log_every: LogEvery = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per run.")
    ] = False,
    **settings: Any,
) -> None:
    """Run every combination of the given values, and write a result file for each.

    Runs that OUT already has are not repeated. A stopped sweep resumes from its checkpoints.
    Several sweeps may share OUT.
    """
    from gradmix.loggers import LogTo
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import run_sweep

    if file is None and not data:
        raise InputError("nothing to run; give --data or a file such as CONFIG.toml")
    configs, skipped = chosen_runs(
        data, seeds, settings, imports, controls, file=file, skip_impossible=skip_impossible
    )
    for name, reason in skipped.items():
        remark(f"skipped: {name}: {reason}")
        if as_json:
            line = {"status": "impossible", "combination": name, "reason": reason}
            show_json(line, indent=None)
    display = SweepDisplay()

    def note(state: Sweep, outcome: Outcome | None) -> None:
        display.show(state, outcome)
        if as_json and outcome is not None:
            show_json(_line(state, outcome), indent=None)

    stopped = False
    try:
        with display:
            run_sweep(
                configs,
                ResultStore(out),
                jobs=jobs,
                engine=_engine(engine, address, jobs, devices_per_run),
                again=again,
                retry_failed=retry_failed,
                skip_impossible=skip_impossible,
                checkpoint=checkpoint,
                log=LogTo(tuple(log), log_every) if log else None,
                on_progress=note,
            )
    except KeyboardInterrupt:
        stopped = True
    if display.sweep is not None:
        _conclude(display.sweep, stopped, as_json)
    if stopped:
        raise typer.Exit(130)
    if display.sweep is not None and display.sweep.failures:
        raise typer.Exit(1)


def _engine(name: str, address: str | None, jobs: int, devices: int | None) -> Engine | None:
    """Return where the runs are computed; None: as `jobs` says."""
    from gradmix.runs.workers import dask_engine, loky_engine

    if name == "dask":
        if devices is not None:
            raise InputError("devices_per_run belongs to the engine loky; dask workers choose")
        return dask_engine(address, jobs)
    if address is not None:
        raise InputError(f"address is {address!r}, and engine is 'loky'; give --engine dask")
    return None if devices is None else loky_engine(jobs, devices)


def _line(state: Sweep, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a run and the progress of the sweep, for JSON output."""
    result, failure = outcome.result, outcome.failure
    line: dict[str, Any] = {"status": outcome.status, "config": outcome.config.to_json()}
    if result is not None:
        line |= {"file": str(state.store.path_of(outcome.config))}
        line |= {"metrics": result.metrics, "seconds": result.seconds}
    if failure is not None:
        line |= {"error": failure.error, "message": failure.message}
    notes = {"remark": outcome.remark, "reason": outcome.reason}
    line |= {name: text for name, text in notes.items() if text}
    line["progress"] = {
        "total": len(state.configs),
        "done": state.count("done", "kept"),
        "failed": state.count("failed"),
        "running": len(state.running()),
        "seconds_left": state.seconds_left(),
    }
    return line


def _conclude(state: Sweep, stopped: bool, as_json: bool) -> None:
    """Print means over the seeds, and which runs are missing and why."""
    from gradmix.runs.groups import group_results
    from gradmix.runs.tables import comparison_table

    if state.results and not as_json:
        show_results(comparison_table(group_results(state.results)).text())
        show(f"results in {state.store.path}")
    done, total = len(state.results), len(state.configs)
    if stopped:
        remark(f"stopped: {done} of {total} runs are finished; the same command resumes")
    if state.failures:
        remark(
            f"{len(state.failures)} of {total} runs failed; `gradmix results {state.store.path} "
            "--failed` shows why, --retry-failed repeats them"
        )
