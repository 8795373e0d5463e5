"""gradmix report: write all results of a folder as one HTML page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from gradmix.cli.results import current_results, open_store
from gradmix.cli.terminal import remark, show
from gradmix.errors import InputError


def report(
    store: Annotated[str, typer.Argument(help="Folder with result files.")] = "runs",
    out: Annotated[
        str, typer.Option("--out", "-o", help="File to write; an existing file is replaced.")
    ] = "report.html",
    title: Annotated[str, typer.Option(help="Title of the page.")] = "gradmix report",
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with this mix, method or setting, such as epochs=20. Default: no mixing."
        ),
    ] = None,
    protocol: Annotated[
        int | None, typer.Option(help="Show results of this protocol version only.")
    ] = None,
) -> None:
    """Write all results in a folder as one HTML page: charts, tables against the paper, CSV.

    The page is self-contained and needs no network. Invalid result files are listed and skipped.
    """
    results = current_results(open_store(store), protocol)
    if not results:
        raise InputError(f"store is {store!r}, which has no results; `gradmix run` makes some")
    from gradmix.report import write_report

    path = write_report(results, out, title=title, against=against)
    show(f"report in {path}")
    if open_it and not webbrowser.open(Path(path).resolve().as_uri()):
        remark("no browser was found to open the page")
