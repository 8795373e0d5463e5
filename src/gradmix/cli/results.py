"""The results in a folder: gradmix results shows them, gradmix report writes an HTML page."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gradmix.cli.settings import Texts
from gradmix.cli.terminal import output, printable, remark, show, show_json, show_results
from gradmix.errors import InputError, UnknownNameError
from gradmix.settings import RunSettings

if TYPE_CHECKING:
    from gradmix.runs.groups import Group
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore

FORMATS = ("table", "csv", "json", "latex", "markdown")
Store = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder with result files.")]
Protocol = Annotated[int | None, typer.Option(help="Show results of this protocol version only.")]


def results(
    store: Store = "runs",
    data: Annotated[Texts, typer.Option(help="Show these data sets only.")] = None,
    method: Annotated[Texts, typer.Option(help="Show these methods only.")] = None,
    mix: Annotated[Texts, typer.Option(help="Show these mixes only.")] = None,
    seeds: Annotated[Texts, typer.Option(help="Show these seeds only, such as 0-4.")] = None,
    where: Annotated[
        Texts, typer.Option(help="Show runs with these settings only, such as epochs=20.")
    ] = None,
    metric: Annotated[
        Texts, typer.Option(help="Metrics; see docs/results.md. Default: average_accuracy.")
    ] = None,
    by: Annotated[
        Texts,
        typer.Option(
            help="Settings to group by. Default: data, method, mix and every setting that varies."
        ),
    ] = None,
    across: Annotated[str, typer.Option(help="Setting that gets one column per value.")] = "data",
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with this mix, method or setting, such as epochs=20, seed by seed."
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Output format: table, csv, json, latex or markdown.")
    ] = "table",
    runs: Annotated[bool, typer.Option(help="Show every run instead of means.")] = False,
    failed: Annotated[bool, typer.Option(help="Show failed runs and their errors.")] = False,
    protocol: Protocol = None,
) -> None:
    """Show the results in a folder: mean ± standard deviation over the seeds, the best in bold."""
    from gradmix._setting_types import parse_seeds
    from gradmix.runs import tables
    from gradmix.runs.comparisons import parse_condition
    from gradmix.runs.groups import capability_note, group_results, in_order, select

    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    found = _open_store(store)
    numbers = None if seeds is None else parse_seeds(seeds)
    given: dict[str, Any] = {"data": data, "method": method, "mix": mix, "seed": numbers}
    wanted = {name: list(values) for name, values in given.items() if values is not None}
    for name, value in map(parse_condition, where or []):  # a repeated name adds a value
        wanted.setdefault(name, []).append(value)
    if runs and against is not None:
        raise InputError(f"against is {against!r}, which compares means; do not give --runs")
    if failed:
        _show_failures(found, wanted, form)
        return
    everything = _current_results(found, protocol)
    chosen = in_order(select(everything, wanted))
    if not chosen:
        there = "; ".join(
            f"{name} {', '.join(sorted({str(result.config[name]) for result in everything}))}"
            for name in ("data", "method", "mix")
        )
        raise InputError(f"{store} has no such results; it has {there}")
    metrics, groups = metric or ["average_accuracy"], []
    if not runs:
        groups = group_results(chosen, by)
        _check_names(everything, groups, across, against)
    if form in ("csv", "json"):
        if note := capability_note(chosen):  # tables have it below
            remark(f"note: {note}")
        if not runs:
            records = tables.group_records(groups, metrics, against)
        else:
            records = list(map(asdict, chosen)) if form == "json" else tables.run_records(chosen)
        text = tables.to_csv(records) if form == "csv" else json.dumps(records, indent=1) + "\n"
        typer.echo(text, nl=False)
        return
    if runs:
        table = tables.runs_table(chosen, metrics)
    else:
        table = tables.comparison_table(groups, metrics, against, across).text()
    if form == "table":
        show_results(table)
    else:
        write = tables.to_latex if form == "latex" else tables.to_markdown
        typer.echo(write(table), nl=False)


def _open_store(path: str) -> ResultStore:
    """Return the store in an existing folder."""
    from gradmix.runs.store import ResultStore

    if not Path(path).is_dir():
        raise InputError(f"{path!r} is not a folder; give a folder with results, before any option")
    return ResultStore(path)


def _current_results(store: ResultStore, protocol: int | None) -> list[RunResult]:
    """Return the results of a protocol version, by default the current one; say what is skipped."""
    from gradmix.runs.measures import count
    from gradmix.runs.results import protocol_version

    everything, problems = store.read_all()
    _say_skipped(problems)
    chosen: list[RunResult] = []
    others: list[RunResult] = []
    for result in everything:
        wanted = protocol_version(result.config) if protocol is None else protocol
        (chosen if result.protocol_version == wanted else others).append(result)
    if others:
        versions = ", ".join(map(str, sorted({result.protocol_version for result in others})))
        remark(
            f"skipped: {count(len(others), 'result')} of protocol version {versions}; "
            "--protocol shows them"
        )
    if not chosen:
        left = " of this protocol version" if others else ""
        raise InputError(
            f"the folder {str(store.path)!r} has no results{left}; make some with: "
            f"gradmix run --data digits --out {store.path}"
        )
    return chosen


def _say_skipped(problems: Mapping[Path, str]) -> None:
    """Print the invalid files and the reasons."""
    for path, reason in problems.items():
        remark(printable(f"skipped: {path}: {reason.removeprefix(f'{path} ')}"))


def _show_failures(store: ResultStore, wanted: Mapping[str, Sequence[Any]], form: str) -> None:
    from gradmix.runs.measures import count

    if form not in ("table", "json"):
        raise InputError(f"format is {form!r}; failed runs are shown as table or json")
    for name in wanted:
        if name not in RunSettings.model_fields:
            raise UnknownNameError("setting", name, RunSettings.model_fields)
    everything, problems = store.read_failures()
    _say_skipped(problems)
    failures = [
        failure
        for failure in everything
        if all(failure.config.get(name) in allowed for name, allowed in wanted.items())
    ]
    if form == "json":
        show_json([failure.model_dump() for failure in failures], indent=1)
        return
    for failure in failures:
        c = failure.config
        name = f"{c['data']} {c['method']} {c['mix']} seed {c['seed']}"
        output.print(Text(printable(name), style="bold"), soft_wrap=True)
        show(failure.traceback)
    output.print(count(len(failures), "failed run"))


def _check_names(
    everything: Sequence[RunResult], groups: Sequence[Group], across: str, against: str | None
) -> None:
    """Refuse settings and values that no result has."""
    from gradmix.runs.groups import check_names

    check_names("setting", [across], [result.config for result in everything])
    if against is not None:
        _check_against(everything, groups, against)


def _check_against(everything: Sequence[RunResult], groups: Sequence[Group], against: str) -> None:
    """Refuse a value to compare with that no result has."""
    from gradmix.runs.comparisons import parse_against
    from gradmix.runs.groups import show_setting

    name, value = parse_against(against, groups)
    values = [result.config.get(name) for result in everything]
    if value not in values:
        raise UnknownNameError(name, value, set(map(show_setting, values)))


def report(
    store: Store = "runs",
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
    protocol: Protocol = None,
) -> None:
    """Write all results in a folder as one HTML page: charts, tables against the paper, CSV.

    The page is self-contained and needs no network. Invalid result files are listed and skipped.
    """
    found = _current_results(_open_store(store), protocol)
    from gradmix.report import write_report
    from gradmix.runs.groups import group_results

    if against is not None:
        _check_against(found, group_results(found), against)
    path = write_report(found, out, title=title, against=against)
    show(f"report in {path}")
    if open_it and not webbrowser.open(Path(path).resolve().as_uri()):
        remark("no browser was found to open the page")
