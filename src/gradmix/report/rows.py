"""The rows of the report: the runs of one configuration over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradmix.data import DATASETS
from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.mixing import ABOUT
from gradmix.runs.groups import Group, differing, group_results, grouped
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Summary, summarize, summarize_each
from gradmix.runs.tables import display, show_setting
from gradmix.settings import short_name
from gradmix.training.metrics import accuracy_after_each_task

COLOURED = (
    *("none", "mixup", "manifold-mixup", "cutmix", "remix", "balanced-mixup"),
    *("gradmix", "gradmix+"),
)
"""Mixes with a colour of their own in `report.css`."""

OTHER_COLOURS = 6
IDENTITY = ("data", "method", "mix", "seed")


@dataclass(frozen=True)
class Row(Group):
    """Runs that differ only in their seed."""

    settings: str = ""  # other settings that differ within the data set
    colour: str = ""  # CSS colour of the mix

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.config["data"])

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.config["method"])

    @property
    def mix(self) -> str:
        """The name of the mix."""
        return str(self.config["mix"])

    @property
    def mixes(self) -> bool:
        """Whether the runs mix samples."""
        return self.mix != "none"

    @property
    def name(self) -> str:
        """A name that is unique within the data set and method."""
        return self._with_settings(self.mix if self.mixes else "no mixing")

    @property
    def label(self) -> str:
        """A name that is unique within the data set."""
        method = display(self.method)
        return self._with_settings(f"{method} + {self.mix}" if self.mixes else method)

    def _with_settings(self, name: str) -> str:
        return f"{name} · {self.settings}" if self.settings else name

    def variants(self) -> list[str]:
        """Return the names of other predictors that all runs have."""
        return [v for v in self.results[0].variants if all(v in r.variants for r in self.results)]

    def variant(self, variant: str, metric: str) -> Summary | None:
        """Summarize a metric of another predictor."""
        return self.summary(lambda r: r.variants[variant]["metrics"].get(metric))

    def seconds(self, part: str) -> Summary | None:
        """Summarize the time of a part of the run."""
        return self.summary(lambda r: r.seconds.get(part))

    def criterion_share(self) -> Summary | None:
        """Summarize the share of the criterion in the time of a run, in percent."""
        return self.summary(
            lambda r: (
                100 * r.seconds["criterion"] / r.seconds["total"]
                if r.seconds.get("total") and "criterion" in r.seconds
                else None
            )
        )

    def summary(self, read: Callable[[RunResult], float | None]) -> Summary | None:
        """Summarize what `read` returns, over the runs that have it."""
        values = [value for result in self.results if (value := read(result)) is not None]
        return summarize(values) if values else None

    def matrix(self) -> list[list[Summary]]:
        """Return the accuracy on every task learned so far, after each task."""
        return [
            summarize_each([result.accuracy[task][: task + 1] for result in self.results])
            for task in range(len(self.results[0].tasks))
        ]

    def after_each_task(self) -> list[Summary]:
        """Return the mean accuracy on the tasks learned so far, after each task."""
        return summarize_each([accuracy_after_each_task(r.accuracy) for r in self.results])


def make_rows(results: Sequence[RunResult]) -> list[Row]:
    """Group results by configuration; sort by data set, method and mix.

    Raises:
        InputError: There are no results.
    """
    if not results:
        raise InputError("results is empty; give at least one run")
    groups = group_results(results)
    rows = [
        Row(group.key, tuple(found))
        for group in groups
        for found in grouped(group.results, _classes).values()
    ]
    rows.sort(key=_order)
    colours = mix_colours(row.mix for row in rows)
    return [
        replace(row, settings=_settings_text(row, names), colour=colours[row.mix])
        for of_data in by_data(rows).values()
        for names in [differing([row.results[0] for row in of_data], ())]
        for row in of_data
    ]


def mix_colours(mixes: Iterable[str]) -> dict[str, str]:
    """Return a colour for every mix. Mixes without a colour of their own share a few others.

    >>> mix_colours(["gradmix+", "gradient:cutmix:remix"])
    {'gradmix+': 'var(--mix-gradmix-plus)', 'gradient:cutmix:remix': 'var(--mix-other-1)'}
    """
    mixes = list(dict.fromkeys(mixes))
    others = enumerate(other_mixes(mixes))
    names = {mix: mix.replace("+", "-plus") for mix in COLOURED}
    names |= {mix: f"other-{place % OTHER_COLOURS + 1}" for place, mix in others}
    return {mix: f"var(--mix-{names[mix]})" for mix in mixes}


def other_mixes(mixes: Iterable[str]) -> list[str]:
    """Return the mixes without a colour of their own, such as plugins, in order of appearance."""
    return [mix for mix in dict.fromkeys(mixes) if mix not in COLOURED]


def by_data(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by data set."""
    return grouped(rows, lambda row: row.data)


def by_method(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Group rows by data set and method."""
    return grouped(rows, lambda row: (row.data, row.method))


def _classes(result: RunResult) -> str:
    """Return the classes as text: a user's folder may change between two runs."""
    return repr((result.class_names, [task["classes"] for task in result.tasks]))


def _order(row: Row) -> tuple[tuple[int, str], ...]:
    orders = ((row.data, list(DATASETS)), (row.method, list(METHODS)), (row.mix, list(ABOUT)))
    return tuple(
        (known.index(name), "") if name in known else (len(known), name) for name, known in orders
    )


def _settings_text(row: Row, names: Collection[str]) -> str:
    """Return these settings of a row as text, without the ones that name it."""
    settings = row.config.items()
    texts = [format_setting(k, v) for k, v in settings if k in names and k not in IDENTITY]
    return " ".join(filter(None, texts))


def format_setting(name: str, value: Any) -> str:
    """Return a setting as short text; empty if it is not set.

    >>> format_setting("lr", 0.1), format_setting("options", {"beta": 0.5})
    ('lr 0.1', 'beta 0.5')
    """
    if isinstance(value, dict):
        return " ".join(f"{key} {number}" for key, number in value.items())
    if value is None or value == []:
        return ""
    return f"{short_name(name)} {show_setting(value)}"
