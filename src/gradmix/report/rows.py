"""The rows of the report: the runs of one configuration over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradmix.errors import InputError
from gradmix.runs.comparisons import uses_gradients
from gradmix.runs.groups import (
    BY,
    Group,
    differing,
    display,
    format_setting,
    group_results,
    grouped,
    in_order,
)
from gradmix.runs.results import RunResult

COLOURED = (
    *("none", "mixup", "manifold-mixup", "cutmix", "remix", "balanced-mixup"),
    *("balanced-remix", "gradmix", "gradmix+"),
)
"""Mixes with a colour of their own in `report.css`."""

OTHER_COLOURS = 6
IDENTITY = (*BY, "seed")


@dataclass(frozen=True)
class Row(Group):
    """Runs that differ only in their seed."""

    data: str
    method: str
    mix: str
    settings: str = ""  # other settings that differ within the data set
    colour: str = ""  # CSS colour of the mix

    @property
    def mixes(self) -> bool:
        """Whether the runs mix samples."""
        return self.mix != "none"

    @property
    def uses_gradients(self) -> bool:
        """Whether gradients choose the partners."""
        return uses_gradients(self.config)

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


def make_rows(results: Sequence[RunResult]) -> list[Row]:
    """Group results by configuration; sort by data set, method and mix.

    Raises:
        InputError: There are no results.
    """
    if not results:
        raise InputError("results is empty; give at least one run")
    rows = [
        Row(group.key, tuple(found), *(group.key[name] for name in BY))
        for group in group_results(in_order(results))
        for found in grouped(  # a user's folder may change between two runs
            group.results, lambda one: repr((one.class_names, [t["classes"] for t in one.tasks]))
        ).values()
    ]
    colours = mix_colours(row.mix for row in rows)
    named = []
    for of_data in by_data(rows).values():
        every = differing((row.results[0] for row in of_data), ())
        names = [name for name in every if name not in IDENTITY]
        for row in of_data:
            texts = (format_setting(name, row.config.get(name)) for name in names)
            settings = " ".join(filter(None, texts))
            named.append(replace(row, settings=settings, colour=colours[row.mix]))
    return named


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
