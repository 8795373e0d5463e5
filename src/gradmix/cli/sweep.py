"""Many runs: gradmix sweep computes a grid, gradmix reproduce the tables of the paper."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from gradmix._setting_types import parse_seeds
from gradmix.cli import settings as options
from gradmix.cli.terminal import SweepDisplay, output, remark, show, show_json, show_results
from gradmix.errors import FileError, InputError

if TYPE_CHECKING:
    from gradmix.paper.pages import Selection
    from gradmix.paper.reproductions import Reproduction
    from gradmix.runs.run import Outcome
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import Sweep
    from gradmix.runs.workers import Engine


@options.with_settings
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml", help="File of grids; options replace its settings."),
    ] = None,
    data: options.Data = None,
    seeds: options.Seeds = None,
    imports: options.Imports = None,
    controls: options.Controls = False,
    jobs: options.Jobs = 1,
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
    out: options.Out = "runs",
    again: options.Again = False,
    retry_failed: options.RetryFailed = False,
    skip_impossible: Annotated[bool, typer.Option(help="Skip impossible combinations.")] = False,
    checkpoint: options.Checkpoint = True,
    log: options.Logs = None,
    log_every: options.LogEvery = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON per run.")] = False,
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
    configs, skipped = options.chosen_runs(
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
            raise InputError(
                "--devices-per-run works with --engine loky only; dask workers choose their devices"
            )
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
        remark(f"stopped: {done} of {total} runs are finished; the same command computes the rest")
    if state.failures:
        remark(
            f"{len(state.failures)} of {total} runs failed; `gradmix results {state.store.path} "
            "--failed` shows why, --retry-failed repeats them"
        )


def reproduce(
    names: Annotated[
        options.Texts,
        typer.Argument(metavar="NAME…", help="Tables and figures, or all. Default: list them."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Show all names.")] = False,
    data: options.Data = None,
    seeds: Annotated[
        options.Texts, typer.Option(help="Seeds, such as 0 1 2. Default: 0-4, as in the paper.")
    ] = None,
    mix: Annotated[
        options.Texts,
        typer.Option(help="Run these mixes only; main tables also take mixes of your own."),
    ] = None,
    method: Annotated[
        options.Texts, typer.Option(help="Add the rows of these methods to main tables.")
    ] = None,
    imports: options.Imports = None,
    scale: Annotated[
        str, typer.Option(help="full, as in the paper, or small: narrow networks and few epochs.")
    ] = "full",
    jobs: options.Jobs = 1,
    out: options.Out = "runs",
    to: Annotated[str, typer.Option(help="Folder for the tables and figures.")] = "reproduction",
    run: Annotated[
        bool, typer.Option(help="Compute missing runs, or show only the results in OUT.")
    ] = True,
    retry_failed: options.RetryFailed = False,
) -> None:
    """Reproduce tables and figures of the paper: our value, the paper's and the difference.

    Each one is also written to a Markdown file, with pictures if matplotlib is installed; what an
    existing file shows stays. Runs that OUT already has are not repeated. Stopped runs resume from
    their checkpoints. Without a name, the command lists all names.
    """
    from gradmix.paper.pages import Selection
    from gradmix.paper.reproductions import find_reproduction, reproductions
    from gradmix.plugins import import_plugins
    from gradmix.runs.store import ResultStore

    if list_them or not names:
        table = Table("name", "", "content", "data", title_justify="left", box=None)
        for one in reproductions().values():
            table.add_row(one.name, one.kind, one.about, ", ".join(one.data))
        output.print(table)
        return
    import_plugins(imports or [])
    numbers = parse_seeds(seeds or ["0-4"])
    chosen = []
    for name in reproductions() if "all" in names else dict.fromkeys(names):
        one = find_reproduction(name, scale)
        own = list(dict.fromkeys(data or one.data))
        selection = Selection(mixes=mix, methods=method or [], data=own, seeds=numbers)
        if wanted := selection.configs(one):
            chosen.append((one, selection, wanted))
    if not chosen:
        raise InputError(f"mix is {mix}, which {', '.join(names)} does not have; give others")
    if "\0" in to:
        raise InputError(f"to is {to!r}; name a folder")
    there = next(path for path in (Path(to), *Path(to).absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise FileError(
            f"to is {to!r}, but {there} is not a writable folder ({error.strerror}); give another"
        ) from error
    if not run and not Path(out).is_dir():
        raise InputError(
            f"out is {out!r}, which is not a folder; with --no-run, give one with results"
        )
    configs = list(dict.fromkeys(config for _, _, wanted in chosen for config in wanted))
    store = ResultStore(out)
    stopped = False
    if run:
        from gradmix.runs.sweep import run_sweep

        display = SweepDisplay()
        try:
            with display:
                run_sweep(
                    configs, store, jobs=jobs, retry_failed=retry_failed, on_progress=display.show
                )
        except KeyboardInterrupt:
            remark("stopped; the same command resumes")
            stopped = True
    missing = sum(store.find(config) is None for config in configs)
    if missing:
        remark(f"{missing} of {len(configs)} runs are missing; the tables show the others")
    for one, selection, _ in chosen:
        _show_reproduction(one, selection, store, Path(to))
    if stopped:
        raise typer.Exit(130)


def _show_reproduction(
    one: Reproduction, selection: Selection, store: ResultStore, folder: Path
) -> None:
    """Show what was asked for on the terminal, and add it to the page."""
    from gradmix.paper.pages import update_page
    from gradmix.paper.tables import printable

    tables = selection.fill(one, store.find)
    if not tables:
        remark(f"{one.name}: {store.path} has no runs for it")
        return
    output.print(f"\n[bold]{one.title}[/]", soft_wrap=True)
    show(one.about)
    for filled in tables:
        show_results(printable(filled).text())
    try:
        page, remarks = update_page(one, selection, store.find, folder)
    except OSError as error:
        raise FileError(
            f"to is {str(folder)!r}, which is not writable ({error}); give another folder"
        ) from error
    for text in remarks:
        remark(text)
    show(f"in {page}")
