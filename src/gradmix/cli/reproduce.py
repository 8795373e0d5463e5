"""gradmix reproduce: the paper's tables and figures, with the paper's numbers and ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from gradmix.cli.settings import Data, Imports, Jobs, Out, RetryFailed
from gradmix.cli.terminal import SweepDisplay, output, remark, show, show_results
from gradmix.errors import FileError, InputError

if TYPE_CHECKING:
    from gradmix.paper.pages import Selection
    from gradmix.paper.reproductions import Reproduction
    from gradmix.runs.store import ResultStore


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="Tables and figures, or all. Default: list them."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Show all names.")] = False,
    data: Data = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Seeds, such as 0 1 2. Default: 0-4, as in the paper.")
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(help="Run these mixes only; main tables also take mixes of your own."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Add the rows of these methods to main tables.")
    ] = None,
    imports: Imports = None,
    scale: Annotated[
        str, typer.Option(help="full, as in the paper, or small: narrow networks and few epochs.")
    ] = "full",
    jobs: Jobs = 1,
    out: Out = "runs",
    to: Annotated[str, typer.Option(help="Folder for the tables and figures.")] = "reproduction",
    run: Annotated[
        bool, typer.Option(help="Compute missing runs, or show only the results in OUT.")
    ] = True,
    retry_failed: RetryFailed = False,
) -> None:
    """Reproduce tables and figures of the paper: our value, the paper's and the difference.

    Each one is also written to a Markdown file, with pictures if matplotlib is installed; what an
    existing file shows stays. Runs that OUT already has are not repeated. Stopped runs resume from
    their checkpoints. Without a name, the command lists all names.
    """
    from gradmix._setting_types import parse_seeds
    from gradmix.paper.pages import Selection
    from gradmix.paper.reproductions import find_reproduction, reproductions
    from gradmix.plugins import import_plugins
    from gradmix.runs.store import ResultStore

    if list_them or not names:
        table = RichTable("name", "", "content", "data", title_justify="left", box=None)
        for one in reproductions().values():
            table.add_row(one.name, one.kind, one.about, ", ".join(one.data))
        output.print(table)
        return
    import_plugins(imports or [])
    numbers = parse_seeds(seeds or ["0-4"])
    chosen = []
    if "all" in names:
        wanted_ones = list(reproductions().values())
    else:
        wanted_ones = [find_reproduction(name) for name in dict.fromkeys(names)]
    for one in wanted_ones:
        own = list(dict.fromkeys(data or one.data))
        selection = Selection(mixes=mix, methods=method or [], data=own, seeds=numbers)
        if wanted := selection.configs(one, scale):
            chosen.append((one, selection, wanted))
    if not chosen:
        raise InputError(f"mix is {mix}, which {', '.join(names)} does not have; give others")
    _check_folder(to)
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
        _show(one, selection, store, scale, Path(to))
    if stopped:
        raise typer.Exit(130)


def _check_folder(to: str) -> None:
    """Refuse a path that cannot become a folder, before any run."""
    if "\0" in to:
        raise InputError(f"to is {to!r}; name a folder")
    there = next(path for path in (Path(to), *Path(to).absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise FileError(f"to is {to!r}, but {there} is not a writable folder; give another")


def _show(
    one: Reproduction, selection: Selection, store: ResultStore, scale: str, folder: Path
) -> None:
    """Show what was asked for on the terminal, and add it to the page."""
    from gradmix.paper.pages import title_of, update_page
    from gradmix.paper.tables import printable

    tables = selection.fill(one, store.find, scale)
    if not tables:
        remark(f"{one.name}: {store.path} has no runs for it")
        return
    output.print(f"\n[bold]{title_of(one, scale)}[/]", soft_wrap=True)
    show(one.about)
    for filled in tables:
        show_results(printable(filled).text())
    try:
        page, remarks = update_page(one, selection, store.find, folder, scale)
    except OSError as error:
        raise FileError(
            f"to is {str(folder)!r}, which is not writable ({error}); give another folder"
        ) from error
    for text in remarks:
        remark(text)
    show(f"in {page}")
