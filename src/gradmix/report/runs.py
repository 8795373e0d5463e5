"""Every run: what all have in common, what differs, and with which versions it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmix.report.html import block, cell, line, pairs, table
from gradmix.report.rows import IDENTITY, Row, format_value
from gradmix.runs.results import RunResult

METRICS = (
    "average_accuracy",
    "final_accuracy",
    "forgetting_from_best",
    "forgetting_from_learned",
    "backward_transfer",
    "forward_transfer",
)
SECONDS = ("train", "criterion", "evaluate", "total")


def all_runs(rows: Sequence[Row]) -> list[RunResult]:
    """The runs in the order of the rows."""
    return [result for row in rows for result in row.results]


def common_settings(results: Sequence[RunResult]) -> dict[str, Any]:
    """The settings in which all runs agree."""
    first, *others = [result.config for result in results]
    return {
        name: value
        for name, value in first.items()
        if name not in IDENTITY and all(other.get(name) == value for other in others)
    }


def differing_settings(results: Sequence[RunResult]) -> list[str]:
    """The names of the others, after those that name a run."""
    common = common_settings(results)
    names = dict.fromkeys(name for result in results for name in result.config)
    return [*IDENTITY, *(name for name in names if name not in common and name not in IDENTITY)]


def version_sets(results: Sequence[RunResult]) -> list[dict[str, str]]:
    """The distinct sets of versions, in the order they are met."""
    found: list[dict[str, str]] = []
    for result in results:
        if result.versions not in found:
            found.append(result.versions)
    return found


def common_list(results: Sequence[RunResult]) -> str:
    """What all runs have in common, as HTML."""
    settings = common_settings(results).items()
    return f'<dl class="settings">{pairs((n, format_value(v)) for n, v in settings)}</dl>'


def versions_table(results: Sequence[RunResult]) -> str:
    """The sets of versions, each under the letter that the runs name."""
    sets = version_sets(results)
    names = list(dict.fromkeys(name for versions in sets for name in versions))
    lines = (
        line(letter(number), (cell(versions.get(name, "–")) for name in names))
        for number, versions in enumerate(sets)
    )
    return table("Sets of versions", ["set", *names], [block(lines)])


def runs_table(results: Sequence[RunResult]) -> str:
    """One line for every run: the settings that differ, the headline metrics, the versions."""
    settings = differing_settings(results)
    sets = version_sets(results)
    shown = METRICS[:3]
    columns = ["run", *settings, *shown, "seconds", "versions"]
    lines = (
        line(
            str(number),
            (
                *(cell(format_value(result.config.get(name))) for name in settings),
                *(cell(f"{result.metrics[name]:.4f}") for name in shown),
                cell(f"{result.seconds['total']:.1f}"),
                cell(letter(sets.index(result.versions))),
            ),
        )
        for number, result in enumerate(results, 1)
    )
    names = [name.replace("_", " ") for name in columns]
    return table("Every run; sets of versions are below", names, [block(lines)])


def letter(number: int) -> str:
    """A name for the n-th of a few.

    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'A1')
    """
    turn, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")
