"""The page: template, style, script, data and tables put together into one file."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from gradmix import __version__
from gradmix.errors import ResultError
from gradmix.files.atomic_write import write_text
from gradmix.report import tables
from gradmix.report.classes import parts_of_rows
from gradmix.report.data import chart_data, embed
from gradmix.report.headline import headlines
from gradmix.report.html import pairs
from gradmix.report.rows import Row, by_data, make_rows
from gradmix.report.runs import all_runs, common_list, runs_table, versions_table
from gradmix.runs.results import RunResult

TITLE = "gradmix report"
MANY_SENTENCES = 6
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = ("state", "charts", "pairs", "downloads", "controls", "main")
"""In this order; together they are one script."""


def write_report(
    results: Sequence[RunResult],
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    notes: str = "",
) -> Path:
    """Write the report of some runs to one HTML file that needs nothing else."""
    text = render(results, title=title, notes=notes)
    try:
        write_text(path, text)
    except OSError as error:
        raise ResultError(
            f"the report cannot be written to {os.fspath(path)!r}: {error}"
        ) from error
    return Path(path)


def render(results: Sequence[RunResult], *, title: str = TITLE, notes: str = "") -> str:
    """The report as HTML; the same results give the same text."""
    rows = make_rows(results)
    parts = parts_of_rows(rows)
    runs = all_runs(rows)
    first, *others = headlines(rows)
    scripts = [*map(_read, LIBRARIES), "\n".join(_read(f"assets/{name}.js") for name in SCRIPTS)]
    return Template(_read("assets/report.html")).substitute(
        title=escape(title),
        policy=_policy(scripts),
        style=_read("assets/report.css"),
        headline=first,
        more=_more(others),
        notes=f'<p class="notes">{escape(notes)}</p>' if notes else "",
        facts=pairs(_facts(rows)),
        results=tables.results_table(rows),
        accuracy=tables.accuracy_tables(rows),
        classes=tables.class_tables(rows, parts),
        forgetting=tables.forgetting_tables(rows),
        cost=tables.cost_tables(rows),
        measured=_measured(rows),
        settings=common_list(runs),
        runs=runs_table(runs),
        versions=versions_table(runs),
        data=embed(chart_data(rows, parts)),
        scripts="".join(f"<script>{script}</script>" for script in scripts),
        licences=escape(_read("vendor/LICENSES.txt")),
        version=__version__,
    )


def _measured(rows: Sequence[Row]) -> str:
    """A section of the analyses that runs took along; nothing if none did."""
    found = tables.measured_tables(rows)
    if not found:
        return ""
    about = "Means over the tasks, within a task over the epochs at which they were taken."
    return (
        f'<section id="measured"><h2>What was measured along the runs</h2><p>{about}</p>'
        f"{found}</section>"
    )


def _more(sentences: Sequence[str]) -> str:
    """A list of sentences, folded away if it is long."""
    if not sentences:
        return ""
    items = "".join(f"<li>{sentence}</li>" for sentence in sentences)
    entries = f'<ul class="more">{items}</ul>'
    if len(sentences) <= MANY_SENTENCES:
        return entries
    return f"<details><summary>One by one</summary>{entries}</details>"


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Nothing from anywhere, and of scripts only these."""
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _facts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Names and values that say how much there is."""
    runs = all_runs(rows)
    numbers = {
        "run": len(runs),
        "configuration": len(rows),
        "data set": len(by_data(rows)),
        "method": len({row.method for row in rows}),
        "seed": len({seed for row in rows for seed in row.seeds}),
    }
    facts = [(noun if n == 1 else f"{noun}s", f"{n:,}") for noun, n in numbers.items()]
    seconds = sum(result.seconds["total"] for result in runs)
    return [*facts, ("computed in", _duration(seconds))]


def _duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> _duration(75), _duration(7200), _duration(12)
    ('1.2 min', '2.0 h', '12.0 s')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
