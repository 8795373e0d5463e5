"""The page: template, style, scripts, data and tables in one file."""

from __future__ import annotations

import json
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
from gradmix.report.data import chart_data, final_class_accuracy, shown_by_task
from gradmix.report.headline import headlines
from gradmix.report.rows import Row, by_data, make_rows
from gradmix.runs.results import RunResult

TITLE = "gradmix report"
MANY_SENTENCES = 6
LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = ("state", "charts", "pairs", "downloads", "controls", "main")
"""Joined in this order into one script."""

AFTER_EACH_TASK = "Mean accuracy on the tasks seen, after each task"
OTHER_ACCURACIES = (
    "Accuracy with the outputs of the task only, during training, and before learning"
)
EVERY_CLASS = "Accuracy on every class after the last task"


def write_report(
    results: Sequence[RunResult],
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    notes: str = "",
    against: str | None = None,
) -> Path:
    """Write the report to one self-contained HTML file.

    Args:
        results: The runs to show, at least one.
        path: The file to write. An existing file is replaced.
        title: The title of the page.
        notes: Text to show under the headline.
        against: What every row is compared with: a mix, a method, or name=value for another
            setting. Default: the same settings without mixing.

    Returns:
        The path of the file.

    Raises:
        InputError: There are no results.
        ResultError: The file cannot be written.
    """
    text = render(results, title=title, notes=notes, against=against)
    try:
        write_text(path, text)
    except OSError as error:
        raise ResultError(f"cannot write the report to {os.fspath(path)!r}: {error}") from error
    return Path(path)


def render(
    results: Sequence[RunResult],
    *,
    title: str = TITLE,
    notes: str = "",
    against: str | None = None,
) -> str:
    """Return the report as HTML; see `write_report`. The same results always give the same text."""
    rows = make_rows(results)
    by_task = shown_by_task(rows)
    runs = [result for row in rows for result in row.results]
    first, *others = headlines(rows)
    items = "".join(f"<li>{sentence}</li>" for sentence in others)
    more = f'<ul class="more">{items}</ul>' if others else ""
    if len(others) > MANY_SENTENCES:
        more = f"<details><summary>All comparisons</summary>{more}</details>"
    measured = tables.tables_of("Diagnostics", rows, tables.DIAGNOSTICS)
    if measured:
        about = "Means over tasks. The value of a task is its mean over the measured epochs."
        measured = f'<section id="measured"><h2>Diagnostics</h2><p>{about}</p>{measured}</section>'
    scripts = [*map(_read, LIBRARIES), "\n".join(_read(f"assets/{name}.js") for name in SCRIPTS)]
    charts = chart_data(rows, by_task)
    data = json.dumps(charts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return Template(_read("assets/report.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'",  # only these scripts, and no requests
        style=_read("assets/report.css"),
        headline=first,
        more=more,
        notes=f'<p class="notes">{escape(notes)}</p>' if notes else "",
        facts=tables.to_description_list(_facts(rows)),
        results=tables.results_table(rows, against),
        accuracy=tables.tables_of(AFTER_EACH_TASK, rows, tables.accuracy_by_task)
        + tables.tables_of(OTHER_ACCURACIES, rows, tables.OTHER_ACCURACIES),
        classes=tables.tables_of(EVERY_CLASS, rows, final_class_accuracy(by_task), 2),
        forgetting=tables.tables_of("Forgetting and transfer", rows, tables.FORGETTING),
        cost=tables.tables_of("Seconds per run", rows, tables.cost, 1),
        measured=measured,
        settings=tables.settings_list(runs),
        runs=tables.runs_table(runs),
        versions=tables.versions_table(runs),
        data=data.replace("<", "\\u003c"),  # safe inside a script element
        scripts="".join(f"<script>{script}</script>" for script in scripts),
        licences=escape(_read("vendor/LICENSES.txt")),
        version=__version__,
    )


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _facts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Count what the report shows."""
    runs = [result for row in rows for result in row.results]
    numbers = {
        "run": len(runs),
        "configuration": len(rows),
        "data set": len(by_data(rows)),
        "method": len({row.method for row in rows}),
        "seed": len({seed for row in rows for seed in row.seeds}),
    }
    facts = [(noun if n == 1 else f"{noun}s", f"{n:,}") for noun, n in numbers.items()]
    seconds = sum(result.seconds.get("total", 0.0) for result in runs)
    return [*facts, ("computed in", _duration(seconds))]


def _duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> _duration(75), _duration(7200), _duration(12)
    ('1.2 min', '2.0 h', '12.0 s')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
