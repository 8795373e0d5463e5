"""gradmix results: list, filter, compare and export results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gradmix.cli.terminal import output, printable, remark, show, show_results
from gradmix.errors import InputError, UnknownNameError
from gradmix.settings import RunSettings

if TYPE_CHECKING:
    from gradmix.runs.groups import Group
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore
    from gradmix.runs.tables import TextTable

FORMATS = ("table", "csv", "json", "latex", "markdown")


def results(
    store: Annotated[str, typer.Argument(help="Folder with result files.")] = "runs",
    data: Annotated[list[str] | None, typer.Option(help="Show these data sets only.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Show these methods only.")] = None,
    mix: Annotated[list[str] | None, typer.Option(help="Show these mixes only.")] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help="Show these seeds only, such as 0-4")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Show runs with these settings only, such as epochs=20."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metrics; see docs/results.md. Default: average_accuracy."),
    ] = None,
    by: Annotated[
        list[str] | None,
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
    protocol: Annotated[
        int | None, typer.Option(help="Show results of this protocol version only.")
    ] = None,
) -> None:
    """Show the results in a folder: mean ± standard deviation over the seeds, the best in bold."""
    from gradmix._setting_types import parse_seeds
    from gradmix.runs.comparisons import parse_condition
    from gradmix.runs.groups import capability_note, group_results, in_order, select
    from gradmix.runs.tables import comparison_table, group_records, run_records, runs_table

    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    found = open_store(store)
    wanted: dict[str, list[Any]] = {}
    for name, values in (("data", data), ("method", method), ("mix", mix)):
        wanted |= {} if values is None else {name: list(values)}
    wanted |= {} if seeds is None else {"seed": list(parse_seeds(seeds))}
    for name, value in map(parse_condition, where or []):  # a repeated name adds a value
        wanted.setdefault(name, []).append(value)
    if runs and against is not None:
        raise InputError(f"against is {against!r}, which compares means; do not give --runs")
    if failed:
        _show_failures(found, wanted, form)
        return
    everything = current_results(found, protocol)
    chosen = in_order(select(everything, wanted))
    if not chosen:
        raise InputError(f"{store} has no such results; {_contents(everything)}")
    if form in ("csv", "json") and (note := capability_note(chosen)):  # tables have it below
        remark(f"note: {note}")
    metrics = metric or ["average_accuracy"]
    if runs:
        _print(
            form,
            lambda: runs_table(chosen, metrics),
            lambda: [asdict(one) for one in chosen] if form == "json" else run_records(chosen),
        )
    else:
        groups = group_results(chosen, by)
        _check_names(everything, groups, across, against)
        _print(
            form,
            lambda: comparison_table(groups, metrics, against, across).text(),
            lambda: group_records(groups, metrics, against),
        )


def open_store(path: str) -> ResultStore:
    """Return the store in an existing folder."""
    from gradmix.runs.store import ResultStore

    if not Path(path).is_dir():
        raise InputError(
            f"store is {path!r}, which is not a folder; give one with results, before any option"
        )
    return ResultStore(path)


def current_results(store: ResultStore, protocol: int | None) -> list[RunResult]:
    """Return the results of a store that may be compared, and say which files are skipped.

    Args:
        store: The store.
        protocol: A protocol version; None is the current one of each configuration.
    """
    from gradmix.runs.results import protocol_version

    everything, problems = store.read_all()
    say_skipped(problems)

    def wanted(result: RunResult) -> int:
        return protocol_version(result.config) if protocol is None else protocol

    chosen = [result for result in everything if result.protocol_version == wanted(result)]
    skipped = len(everything) - len(chosen)
    if skipped:
        others = {r.protocol_version for r in everything if r.protocol_version != wanted(r)}
        versions = ", ".join(map(str, sorted(others)))
        remark(f"skipped: {skipped} results of protocol version {versions}; --protocol shows them")
    return chosen


def say_skipped(problems: Mapping[Path, str]) -> None:
    """Print the invalid files and the reasons."""
    for path, reason in problems.items():
        remark(printable(f"skipped: {path}: {reason.removeprefix(f'{path} ')}"))


def _contents(everything: Sequence[RunResult]) -> str:
    if not everything:
        return "it has no results at all"
    values = (
        f"{name} {', '.join(sorted({str(result.config[name]) for result in everything}))}"
        for name in ("data", "method", "mix")
    )
    return "it has " + "; ".join(values)


def _show_failures(store: ResultStore, wanted: Mapping[str, Sequence[Any]], form: str) -> None:
    if form not in ("table", "json"):
        raise InputError(f"format is {form!r}; failed runs are shown as table or json")
    for name in wanted:
        if name not in RunSettings.model_fields:
            raise UnknownNameError("setting", name, RunSettings.model_fields)
    everything, problems = store.read_failures()
    say_skipped(problems)
    failures = [
        failure
        for failure in everything
        if all(failure.config.get(name) in allowed for name, allowed in wanted.items())
    ]
    if form == "json":
        typer.echo(json.dumps([failure.model_dump() for failure in failures], indent=1))
        return
    for failure in failures:
        c = failure.config
        name = f"{c['data']} {c['method']} {c['mix']} seed {c['seed']}"
        output.print(Text(printable(name), style="bold"), soft_wrap=True)
        show(failure.traceback)
    output.print(f"{len(failures)} failed runs")


def _check_names(
    everything: Sequence[RunResult], groups: Sequence[Group], across: str, against: str | None
) -> None:
    """Refuse settings and values that no result has."""
    from gradmix.runs.comparisons import parse_against
    from gradmix.runs.groups import show_setting

    settings = {name for result in everything for name in result.config}
    if across not in settings:
        raise UnknownNameError("setting", across, settings)
    if against is not None:
        name, value = parse_against(against, groups)
        values = [result.config.get(name) for result in everything]
        if value not in values:
            raise UnknownNameError(name, value, set(map(show_setting, values)))


def _print(
    form: str, table: Callable[[], TextTable], records: Callable[[], list[dict[str, Any]]]
) -> None:
    """Print the table, or the records for CSV and JSON."""
    from gradmix.runs.tables import to_csv, to_latex, to_markdown

    if form == "table":
        show_results(table())
        return
    if form == "csv":
        text = to_csv(records())
    elif form == "json":
        text = json.dumps(records(), indent=1) + "\n"
    else:
        text = to_latex(table()) if form == "latex" else to_markdown(table())
    typer.echo(text, nl=False)
