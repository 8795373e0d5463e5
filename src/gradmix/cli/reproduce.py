"""gradmix reproduce: the paper's tables and figures, with the paper's numbers beside ours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from gradmix.cli.terminal import SweepDisplay, messages, output, show_results
from gradmix.errors import InputError, ResultError

if TYPE_CHECKING:
    from gradmix.paper.reproductions import Reproduction
    from gradmix.runs.config import RunConfig
    from gradmix.runs.store import ResultStore

EVERYTHING = "all"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Of --list, or all.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Show what there is.")] = False,
    data: Annotated[list[str] | None, typer.Option(help="Data sets: see `gradmix list`.")] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Like 0 1 2; 0-4 by default, as in the paper.")
    ] = None,
    mix: Annotated[list[str] | None, typer.Option(help="Only the rows of these mixes.")] = None,
    scale: Annotated[
        str, typer.Option(help="full, the paper's, or small: narrow networks and few epochs.")
    ] = "full",
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in a process.")] = 1,
    out: Annotated[str, typer.Option(help="Folder for the result files.")] = "runs",
    to: Annotated[str, typer.Option(help="Folder for the tables and figures.")] = "reproduction",
    run: Annotated[bool, typer.Option(help="Or only show what OUT has already.")] = True,
    retry_failed: Annotated[bool, typer.Option(help="Repeat runs that failed.")] = False,
) -> None:
    """Run what tables and figures of the paper need and show them: ours, theirs, the difference.

    Each is also written to a Markdown file, with pictures if matplotlib is there. Runs that OUT
    has are not repeated; what was stopped goes on where it was.
    """
    from gradmix.paper.reproductions import configs_of, only_mixes
    from gradmix.runs.seeds import parse_seeds
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
        raise InputError(f"out is {out!r}, which is no folder; with --no-run give one with results")
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
        messages.print(f"{missing} of {len(set(wanted))} runs are missing; showing what there is")
    for one in chosen:
        _show(one, data or one.data, numbers, store, scale, Path(to))
    if not finished:
        raise typer.Exit(130)


def _check_folder(to: str) -> None:
    """Refuse what cannot become a folder, before any run."""
    there = next(path for path in (Path(to), *Path(to).absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ResultError(f"to is {to!r}, and {there} is no folder to write to; give another")


def _list() -> None:
    from gradmix.paper.reproductions import reproductions

    table = RichTable("name", "", "what", "data", title_justify="left", box=None)
    for one in reproductions().values():
        table.add_row(one.name, one.kind, one.about, ", ".join(one.data))
    output.print(table)


def _find(names: Sequence[str]) -> list[Reproduction]:
    from gradmix.paper.reproductions import find_reproduction, reproductions

    if not names:
        raise InputError(
            "there is nothing to reproduce; give names, see `gradmix reproduce --list`"
        )
    if EVERYTHING in names:
        return list(reproductions().values())
    return [find_reproduction(name) for name in dict.fromkeys(names)]


def _run(configs: Sequence[RunConfig], store: ResultStore, jobs: int, retry_failed: bool) -> bool:
    """Complete the runs; whether it came to the end."""
    from gradmix.runs.sweep import run_sweep

    display = SweepDisplay()
    try:
        with display:
            run_sweep(
                configs, store, jobs=jobs, retry_failed=retry_failed, on_progress=display.show
            )
    except KeyboardInterrupt:
        messages.print("stopped; the same command goes on")
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
    """On the terminal and as files."""
    from gradmix.paper.pages import title_of, write_page
    from gradmix.paper.sheets import fill, printed

    sheets = fill(reproduction, data, seeds, store.find, scale)
    if not sheets:
        messages.print(f"{reproduction.name}: {store.path} has none of its runs", soft_wrap=True)
        return
    output.print(f"\n[bold]{title_of(reproduction, scale)}[/]", soft_wrap=True)
    output.print(reproduction.about, soft_wrap=True, markup=False)
    for sheet in sheets:
        show_results(printed(sheet))
    try:
        page, problem = write_page(reproduction, sheets, folder, scale)
    except OSError as error:
        raise ResultError(
            f"to is {str(folder)!r}, which cannot be written to ({error}); give another folder"
        ) from error
    if problem:
        messages.print(problem, soft_wrap=True, markup=False)
    output.print(f"in {page}", soft_wrap=True, markup=False)
