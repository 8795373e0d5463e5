"""gradmix reproduce: the paper's tables and figures, with the paper's numbers and ours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from gradmix.cli.terminal import SweepDisplay, messages, output, show_results
from gradmix.errors import FileError, InputError

if TYPE_CHECKING:
    from gradmix.paper.reproductions import Reproduction
    from gradmix.runs.config import RunConfig
    from gradmix.runs.store import ResultStore

EVERYTHING = "all"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Names from --list, or all.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Show all names.")] = False,
    data: Annotated[list[str] | None, typer.Option(help="Data sets; see `gradmix list`.")] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Seeds, such as 0 1 2. Default: 0-4, as in the paper.")
    ] = None,
    mix: Annotated[
        list[str] | None, typer.Option(help="Show the rows of these mixes only.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full, as in the paper, or small: narrow networks and few epochs.")
    ] = "full",
    jobs: Annotated[int, typer.Option(help="Runs to compute at once, each in a process.")] = 1,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    to: Annotated[str, typer.Option(help="Folder for the tables and figures.")] = "reproduction",
    run: Annotated[
        bool, typer.Option(help="Compute missing runs, or show only the results in OUT.")
    ] = True,
    retry_failed: Annotated[bool, typer.Option(help="Repeat runs that failed earlier.")] = False,
) -> None:
    """Reproduce tables and figures of the paper: our value, the paper's and the difference.

    Each one is also written to a Markdown file, with pictures if matplotlib is installed. Runs
    that OUT already has are not repeated. Stopped runs resume from their checkpoints.
    """
    from gradmix._setting_types import parse_seeds
    from gradmix.paper.reproductions import configs_of, only_mixes
    from gradmix.runs.store import ResultStore

    if list_them:
        _list()
        return
    chosen = _find(names or [])
    if mix is not None:
        chosen = only_mixes(chosen, mix)
    numbers = parse_seeds(seeds or ["0-4"])
    data = None if data is None else list(dict.fromkeys(data))
    _check_folder(to)
    if not run and not Path(out).is_dir():
        raise InputError(
            f"out is {out!r}, which is not a folder; with --no-run, give one with results"
        )
    wanted = [
        config
        for one in chosen
        for line in one.lines
        for name in data or one.data
        for config in configs_of(line, name, numbers, scale)
    ]
    store = ResultStore(out)
    finished = not run or _run(wanted, store, jobs, retry_failed)
    missing = sum(store.find(config) is None for config in dict.fromkeys(wanted))
    if missing:
        messages.print(
            f"{missing} of {len(set(wanted))} runs are missing; the tables show the others"
        )
    for one in chosen:
        _show(one, data or one.data, numbers, store, scale, Path(to))
    if not finished:
        raise typer.Exit(130)


def _check_folder(to: str) -> None:
    """Refuse a path that cannot become a folder, before any run."""
    if "\0" in to:
        raise InputError(f"to is {to!r}; name a folder")
    there = next(path for path in (Path(to), *Path(to).absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise FileError(f"to is {to!r}, but {there} is not a writable folder; give another")


def _list() -> None:
    from gradmix.paper.reproductions import reproductions

    table = RichTable("name", "", "content", "data", title_justify="left", box=None)
    for one in reproductions().values():
        table.add_row(one.name, one.kind, one.about, ", ".join(one.data))
    output.print(table)


def _find(names: Sequence[str]) -> list[Reproduction]:
    from gradmix.paper.reproductions import find_reproduction, reproductions

    if not names:
        raise InputError("nothing to reproduce; give names, see `gradmix reproduce --list`")
    if EVERYTHING in names:
        return list(reproductions().values())
    return [find_reproduction(name) for name in dict.fromkeys(names)]


def _run(configs: Sequence[RunConfig], store: ResultStore, jobs: int, retry_failed: bool) -> bool:
    """Complete the runs; return whether all finished."""
    from gradmix.runs.sweep import run_sweep

    display = SweepDisplay()
    try:
        with display:
            run_sweep(
                configs, store, jobs=jobs, retry_failed=retry_failed, on_progress=display.show
            )
    except KeyboardInterrupt:
        messages.print("stopped; the same command resumes")
        return False
    return True


def _show(
    reproduction: Reproduction,
    data: Sequence[str],
    seeds: Sequence[int],
    store: ResultStore,
    scale: str,
    folder: Path,
) -> None:
    """Show a reproduction on the terminal, and write its page."""
    from gradmix.paper.pages import title_of, write_page
    from gradmix.paper.tables import fill_tables, printable

    tables = fill_tables(reproduction, data, seeds, store.find, scale)
    if not tables:
        messages.print(f"{reproduction.name}: {store.path} has no runs for it", soft_wrap=True)
        return
    output.print(f"\n[bold]{title_of(reproduction, scale)}[/]", soft_wrap=True)
    output.print(reproduction.about, soft_wrap=True, markup=False)
    for filled in tables:
        show_results(printable(filled).text())
    try:
        page, problem = write_page(reproduction, tables, folder, scale)
    except OSError as error:
        raise FileError(
            f"to is {str(folder)!r}, which is not writable ({error}); give another folder"
        ) from error
    if problem:
        messages.print(problem, soft_wrap=True, markup=False)
    output.print(f"in {page}", soft_wrap=True, markup=False)
