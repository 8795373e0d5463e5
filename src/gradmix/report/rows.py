"""What the report compares: rows, each the runs of one configuration over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradmix.data import DATASETS
from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.mixing import ABOUT
from gradmix.runs.names import display
from gradmix.runs.results import RunResult
from gradmix.runs.tables import group_results, mean_std
from gradmix.training.metrics import accuracy_after_each_task

SHORT = {
    "alpha": "α",
    "tau": "τ",
    "exemplars_per_class": "exemplars",
    "memory_total": "memory",
    "replay_batch_size": "replay batch",
    "batch_size": "batch",
}
OTHER_COLOURS = 4
IDENTITY = ("data", "method", "mix", "seed")


class Spread(NamedTuple):
    """Mean and standard deviation (of a sample; None for one value)."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but the seed, in the order of their seeds."""

    results: tuple[RunResult, ...]
    settings: str = ""  # what else differs within the data set
    colour: str = ""  # its mix's, as CSS has it

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with the seed of the first run."""
        return self.results[0].config

    @property
    def data(self) -> str:
        """The data set's name."""
        return str(self.config["data"])

    @property
    def method(self) -> str:
        """The basis method's name."""
        return str(self.config["method"])

    @property
    def mix(self) -> str:
        """The mix's name."""
        return str(self.config["mix"])

    @property
    def mixes(self) -> bool:
        """Whether it mixes at all."""
        return self.mix != "none"

    @property
    def uses_gradients(self) -> bool:
        """Whether partners are chosen by gradients: GradMix and its variants."""
        return self.mix.startswith("grad")

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return [result.config["seed"] for result in self.results]

    @property
    def name(self) -> str:
        """What tells it from other rows of its data set and method."""
        mix = self.mix if self.mixes else "no mixing"
        return f"{mix} · {self.settings}" if self.settings else mix

    @property
    def label(self) -> str:
        """What tells it from other rows of its data set."""
        method = display(self.method)
        label = f"{method} + {self.mix}" if self.mixes else method
        return f"{label} · {self.settings}" if self.settings else label

    def metric(self, name: str, variant: str | None = None) -> Spread:
        """A metric over the seeds, of the main predictor or another."""
        if variant is None:
            return spread([result.metrics[name] for result in self.results])
        return spread([result.variants[variant]["metrics"][name] for result in self.results])

    def seconds(self, part: str) -> Spread:
        """How long a part of a run took."""
        return spread([result.seconds[part] for result in self.results])

    def criterion_share(self) -> Spread:
        """The criterion's part of a run's time, in percent."""
        return spread([100 * r.seconds["criterion"] / r.seconds["total"] for r in self.results])

    def matrix(self) -> list[list[Spread]]:
        """After each task, the accuracy on every task learned so far."""
        return [
            over_seeds([result.accuracy[task][: task + 1] for result in self.results])
            for task in range(len(self.results[0].tasks))
        ]

    def after_each_task(self) -> list[Spread]:
        """Mean accuracy over the tasks seen, after each task."""
        return over_seeds([accuracy_after_each_task(result.accuracy) for result in self.results])

    def variants(self) -> list[str]:
        """Other predictors that all of its runs have."""
        return [v for v in self.results[0].variants if all(v in r.variants for r in self.results)]


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation.

    >>> spread([1.0, 3.0]), spread([2.0])
    (Spread(mean=2.0, std=1.4142135623730951), Spread(mean=2.0, std=None))
    """
    return Spread(*mean_std(values))


def over_seeds(lists: Sequence[Sequence[float]]) -> list[Spread]:
    """Mean and standard deviation at every position of lists of one length."""
    return [spread(values) for values in zip(*lists, strict=True)]


def make_rows(results: Sequence[RunResult]) -> list[Row]:
    """Runs by configuration, ordered by data set, method and mix."""
    if not results:
        raise InputError("results is empty; give at least one run")
    groups = group_results(results)
    rows = [Row(found) for group in groups for found in _by_classes(group.results)]
    rows.sort(key=_order)
    colours = mix_colours(row.mix for row in rows)
    return [Row(row.results, _differing(row, rows), colours[row.mix]) for row in rows]


def mix_colours(mixes: Iterable[str]) -> dict[str, str]:
    """A colour for every mix: its own if it has a name, the next of a few others if not.

    >>> mix_colours(["gradmix+", "gradient:cutmix:remix"])
    {'gradmix+': 'var(--mix-gradmix-plus)', 'gradient:cutmix:remix': 'var(--mix-other-1)'}
    """
    found: dict[str, str] = {}
    others = 0
    for mix in mixes:
        if mix in found:
            continue
        name = mix.replace("+", "-plus")
        if mix not in ABOUT:
            name = f"other-{others % OTHER_COLOURS + 1}"
            others += 1
        found[mix] = f"var(--mix-{name})"
    return found


def by_data(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of every data set."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.data, []).append(row)
    return groups


def by_method(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of every data set and method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.data, row.method), []).append(row)
    return groups


def _by_classes(results: Iterable[RunResult]) -> list[tuple[RunResult, ...]]:
    """Runs that may be averaged: data in a user's folder may have changed between two runs."""
    groups: dict[str, tuple[RunResult, ...]] = {}
    for result in results:
        key = repr((result.class_names, [task["classes"] for task in result.tasks]))
        groups[key] = (*groups.get(key, ()), result)
    return list(groups.values())


def _order(row: Row) -> tuple[tuple[int, str], ...]:
    orders = (("data", DATASETS), ("method", METHODS), ("mix", ABOUT))
    return tuple(_rank(str(row.config[name]), list(known)) for name, known in orders)


def _rank(name: str, known: list[str]) -> tuple[int, str]:
    return (known.index(name), "") if name in known else (len(known), name)


def _differing(row: Row, rows: list[Row]) -> str:
    """The settings of a row that are not the same for all rows of its data set, in words."""
    others = [other.config for other in rows if other.data == row.data]
    parts = [
        format_setting(name, value)
        for name, value in row.config.items()
        if name not in IDENTITY and any(other.get(name) != value for other in others)
    ]
    return " ".join(part for part in parts if part)


def format_setting(name: str, value: object) -> str:
    """A setting in few letters; nothing for one that is not set.

    >>> format_setting("tau", 0.75), format_setting("options", {"beta": 0.5})
    ('τ 0.75', 'beta 0.5')
    """
    if isinstance(value, dict):
        return " ".join(f"{key} {number}" for key, number in value.items())
    if value is None or value == []:
        return ""
    return f"{SHORT.get(name, name.replace('_', ' '))} {format_value(value)}"


def format_value(value: object) -> str:
    """A setting's value as the tables have it.

    >>> format_value([2, 2]), format_value(None), format_value({})
    ('2,2', '–', '–')
    """
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "–"
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "–"
    return "–" if value is None else str(value)
