"""gradmix results: list, filter, compare and export what runs and sweeps left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gradmix.cli.terminal import messages, output, printable, show_results
from gradmix.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from gradmix.runs.results import RunResult
    from gradmix.runs.store import ResultStore

FORMATS = ("table", "csv", "json", "latex", "markdown")


def results(
    store: Annotated[str, typer.Argument(help="Folder with result files.")] = "runs",
    data: Annotated[list[str] | None, typer.Option(help="Only of these data sets.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only of these methods.")] = None,
    mix: Annotated[list[str] | None, typer.Option(help="Only of these mixes.")] = None,
    seeds: Annotated[list[str] | None, typer.Option(help="Only of these, like 0-4.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Only with these settings, like epochs=20.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="See docs/results.md; average_accuracy by default.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Settings to group by; data method mix, and what differs, by default."),
    ] = None,
    across: Annotated[str, typer.Option(help="The setting that has columns.")] = "data",
    against: Annotated[
        str | None, typer.Option(help="The mix to compare with, seed by seed.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="table, csv, json, latex or markdown.")
    ] = "table",
    runs: Annotated[bool, typer.Option(help="Every run by itself.")] = False,
    failed: Annotated[bool, typer.Option(help="Runs that failed, and their errors.")] = False,
    protocol: Annotated[int | None, typer.Option(help="Of another protocol version.")] = None,
) -> None:
    """Show the results in a folder: mean ± standard deviation over the seeds, the best in bold."""
    from gradmix.runs.seeds import parse_seeds
    from gradmix.runs.store import ResultStore
    from gradmix.runs.tables import group_results, in_order, select

    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    found = ResultStore(store)
    if not found.path.is_dir():
        raise InputError(f"{store} is no folder; give one with results, before any option")
    wanted: dict[str, Sequence[Any]] = {
        name: values
        for name, values in (("data", data), ("method", method), ("mix", mix))
        if values is not None
    }
    wanted |= {} if seeds is None else {"seed": parse_seeds(seeds)}
    wanted |= _conditions(where or [])
    if runs and against is not None:
        raise InputError(f"against is {against!r}, which compares means; leave out --runs")
    if failed:
        _show_failures(found, wanted, form)
        return
    everything = of_protocol(found, protocol)
    chosen = in_order(select(everything, wanted))
    if not chosen:
        raise InputError(f"{store} has no such results; {_contents(everything)}")
    metrics = tuple(metric or ("average_accuracy",))
    if runs:
        text = _runs(chosen, metrics, form)
    else:
        groups = group_results(chosen, by)
        settings = {name for result in everything for name in result.config}
        if across not in settings:
            raise UnknownNameError("setting", across, settings)
        mixes = {result.config["mix"] for result in everything}
        if against is not None and against not in mixes:
            raise UnknownNameError("mix", against, mixes)
        text = _groups(groups, metrics, against, across, form)
    if text:
        typer.echo(text, nl=False)


def _conditions(texts: Sequence[str]) -> dict[str, list[Any]]:
    """name=value, where values are JSON if they can be; a name again adds a value."""
    wanted: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"where is {text!r}; give name=value, like exemplars_per_class=16")
        try:
            wanted.setdefault(name, []).append(json.loads(value))
        except ValueError:
            wanted.setdefault(name, []).append(value)
    return wanted


def of_protocol(store: ResultStore, protocol: int | None) -> list[RunResult]:
    """The results of a protocol version, by default the present one; others are mentioned."""
    from gradmix.runs.results import PROTOCOL_VERSION

    version = PROTOCOL_VERSION if protocol is None else protocol
    everything = store.results()
    others = sorted({r.protocol_version for r in everything if r.protocol_version != version})
    if others:
        messages.print(f"left out: results of protocol version {', '.join(map(str, others))}")
    return [result for result in everything if result.protocol_version == version]


def _contents(everything: Sequence[RunResult]) -> str:
    if not everything:
        return "it has none at all"
    values = (
        f"{name} {', '.join(sorted({str(result.config[name]) for result in everything}))}"
        for name in ("data", "method", "mix")
    )
    return "there is " + "; ".join(values)


def _show_failures(store: ResultStore, wanted: dict[str, Sequence[Any]], form: str) -> None:
    from gradmix.runs.grid import KINDS

    if form not in ("table", "json"):
        raise InputError(f"format is {form!r}; failed runs are shown as table or json")
    for name in wanted:
        if name not in KINDS:
            raise UnknownNameError("setting", name, KINDS)
    failures = [
        failure
        for failure in store.failures()
        if all(failure.config.get(name) in allowed for name, allowed in wanted.items())
    ]
    if form == "json":
        typer.echo(json.dumps([asdict(failure) for failure in failures], indent=1))
        return
    for failure in failures:
        c = failure.config
        name = f"{c['data']} {c['method']} {c['mix']} seed {c['seed']}"
        output.print(Text(printable(name), style="bold"), soft_wrap=True)
        output.print(failure.traceback, soft_wrap=True, markup=False)
    output.print(f"{len(failures)} failed runs")


def _runs(chosen: Sequence[RunResult], metrics: Sequence[str], form: str) -> str:
    from gradmix.runs.formats import run_records, runs_table, to_csv

    if form == "csv":
        return to_csv(run_records(chosen))
    if form == "json":
        return json.dumps([asdict(result) for result in chosen], indent=1) + "\n"
    return _written(runs_table(chosen, metrics), form)


def _groups(
    groups: Sequence[Any], metrics: Sequence[str], against: str | None, across: str, form: str
) -> str:
    from gradmix.runs.formats import layout, to_csv
    from gradmix.runs.tables import summaries

    if form == "csv":
        return to_csv(summaries(groups, metrics, against))
    if form == "json":
        return json.dumps(summaries(groups, metrics, against), indent=1) + "\n"
    return _written(layout(groups, metrics, against, across), form)


def _written(table: Any, form: str) -> str:
    """As text; for the terminal it is shown at once."""
    from gradmix.runs.formats import to_latex, to_markdown

    if form == "table":
        show_results(table)
        return ""
    return to_latex(table) if form == "latex" else to_markdown(table)
