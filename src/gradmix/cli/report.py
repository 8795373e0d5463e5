"""gradmix report: one page of everything that runs and sweeps left."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradmix.cli.results import of_protocol
from gradmix.cli.terminal import messages, output
from gradmix.errors import InputError, ResultError

if TYPE_CHECKING:
    from gradmix.runs.results import RunResult

DEMO_REPORT = "gradmix-demo.html"


def report(
    store: Annotated[str, typer.Argument(help="Folder with result files.")] = "runs",
    out: Annotated[
        str, typer.Option("--out", "-o", help="The file to write; one that is there is replaced.")
    ] = "report.html",
    title: Annotated[str, typer.Option(help="Of the page.")] = "gradmix report",
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    protocol: Annotated[int | None, typer.Option(help="Of another protocol version.")] = None,
) -> None:
    """Write all results in a folder as one HTML page: charts, tables against the paper, CSV.

    The file is complete in itself and needs no network.
    """
    from gradmix.runs.store import ResultStore

    if not Path(store).is_dir():
        raise InputError(f"store is {store!r}, which is no folder; give one with result files")
    found = of_protocol(ResultStore(store), protocol)
    if not found:
        raise InputError(f"store is {store!r}, which has no results; `gradmix run` makes some")
    from gradmix.report import write_report

    path = write_report(found, out, title=title)
    output.print(f"report in {path}", soft_wrap=True, markup=False)
    if open_it and not webbrowser.open(path.resolve().as_uri()):
        messages.print("no browser was found to open it with")


def write_demo_report(results: Sequence[RunResult]) -> None:
    """The report of the demo, where the user is; a folder that is not writable is no error."""
    from gradmix.report import write_report

    try:
        path = write_report(results, DEMO_REPORT, title="gradmix demo")
    except ResultError as error:
        messages.print(str(error), soft_wrap=True, markup=False)
    else:
        output.print(f"All of it, with charts: {path}", soft_wrap=True, markup=False)
