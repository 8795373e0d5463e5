"""Results → groups over seeds: which runs belong together, and what tells them apart, as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gradmix.data import DATASETS
from gradmix.errors import ResultError, UnknownNameError
from gradmix.methods import METHODS
from gradmix.mixing import ABOUT
from gradmix.runs.measures import Read, Summary, summarize
from gradmix.runs.results import RunResult
from gradmix.settings import (
    DEFAULTS,
    FOLDER_PRESET,
    PRESETS,
    REMOVED,
    CriterionSettings,
    MixSettings,
    short_name,
)

BY = ("data", "method", "mix")
"""The settings that always name a group."""

OF_THE_MIX = (*MixSettings.model_fields, *CriterionSettings.model_fields, *REMOVED, "analyses")
"""Settings of the mix, or of what is measured. Groups that differ only in these are rivals."""

OF_THE_METHOD = ("method", "options", "head")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, or in settings they were not grouped by."""

    key: dict[str, Any]  # the settings grouped by
    results: tuple[RunResult, ...]  # sorted by seed

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run."""
        return self.results[0].config

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs."""
        return [result.config["seed"] for result in self.results]

    @property
    def label(self) -> str:
        """The key in one line."""
        texts = (
            str(value) if name in BY else format_setting(name, value)
            for name, value in self.key.items()
        )
        return " ".join(filter(None, texts))

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return a metric of every run that has it, by seed."""
        return {r.config["seed"]: r.metrics[metric] for r in self.results if metric in r.metrics}

    def metric(self, name: str) -> Summary | None:
        """Summarize a metric over the runs that have it; None if no run has it."""
        values = self.by_seed(name)
        return summarize(list(values.values())) if values else None

    def summaries(self, read: Read) -> dict[str, Summary]:
        """Summarize every number that `read` finds, over the runs that have it."""
        found = [read(result) for result in self.results]
        names = dict.fromkeys(name for one in found for name in one)
        return {name: summarize([one[name] for one in found if name in one]) for name in names}


Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, in order of first appearance.

    >>> grouped([3, 1, 4, 1, 5], lambda number: number % 2)
    {1: [3, 1, 1, 5], 0: [4]}
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def select(results: Iterable[RunResult], where: Mapping[str, Collection[Any]]) -> list[RunResult]:
    """Return the results whose settings have one of the given values.

    Raises:
        UnknownNameError: No result has a setting of this name.
    """
    results = list(results)
    check_names("setting", where, [result.config for result in results])
    return [
        result
        for result in results
        if all(result.config.get(name) in allowed for name, allowed in where.items())
    ]


def in_order(results: Iterable[RunResult]) -> list[RunResult]:
    """Sort by data, method and mix (as in `gradmix list`), then by all other settings."""
    known = {"data": list(DATASETS), "method": list(METHODS), "mix": list(ABOUT)}

    def place(name: str, value: Any) -> tuple[int, Any]:
        if value is None:
            return 0, -1  # before all values
        if name in known and value in known[name]:
            return 0, known[name].index(value)
        return (1, value) if isinstance(value, (int, float)) else (2, show_setting(value))

    def places(result: RunResult) -> list[tuple[int, Any]]:
        others = (name for name in result.config if name not in (*BY, "seed"))
        return [place(name, result.config[name]) for name in (*BY, *others, "seed")]

    return sorted(results, key=places)


def group_results(results: Iterable[RunResult], by: Sequence[str] | None = None) -> list[Group]:
    """Group results that agree in the settings `by`, in order of first appearance.

    Old results get the defaults of newer settings. Default of `by`: data, method and mix, plus
    every setting that varies. Settings that belong to a data set, method or mix count only where
    they vary within it.

    Raises:
        UnknownNameError: No result has a setting of this name.
        ResultError: A group has two runs with the same seed.
    """
    # All results get the same settings: defaults for newer ones, None for removed ones.
    results = [replace(result, config=current_settings(result.config)) for result in results]
    known = dict.fromkeys(name for result in results for name in result.config)
    usual = {name: None if name in REMOVED else DEFAULTS.get(name) for name in known}
    results = [replace(result, config={**usual, **result.config}) for result in results]
    check_names("setting", by or (), [known])
    if by is None:
        owners = {name: _owners(name) for name in differing(results, ()) if name not in BY}
        varying = {own: differing(results, own) for own in set(owners.values())}
        by = *BY, *(name for name, own in owners.items() if name in varying[own])
    groups = [
        Group(
            {name: found[0].config.get(name) for name in by},
            tuple(sorted(found, key=lambda result: int(result.config["seed"]))),
        )
        for found in _agreeing(results, by)
    ]
    for group in groups:
        if len(set(group.seeds)) < len(group.seeds) and "seed" not in by:
            others = ", ".join(differing(group.results, by)) or "only in their protocol version"
            raise ResultError(
                f"the group {group.label} has a seed more than once: its runs differ in {others}; "
                "also group by that, or select fewer runs"
            )
    return groups


def differing(results: Iterable[RunResult], by: Sequence[str]) -> tuple[str, ...]:
    """Return the settings, except the seed, that differ between results that agree in `by`."""
    names: dict[str, None] = {}
    for together in _agreeing(results, by):
        first = together[0].config
        for config in (result.config for result in together[1:]):
            every = dict.fromkeys((*first, *config))
            names.update({k: None for k in every if config.get(k) != first.get(k)})
    return tuple(name for name in names if name != "seed")


def _owners(name: str) -> tuple[str, ...]:
    """Return the settings on whose values the default of a setting depends."""
    if name in OF_THE_MIX:
        return "data", "mix"
    if name in OF_THE_METHOD:
        return "data", "method"
    presets = (*PRESETS.values(), FOLDER_PRESET, ("data_version",))
    return ("data",) if any(name in preset for preset in presets) else ()


def _agreeing(results: Iterable[RunResult], by: Sequence[str]) -> list[list[RunResult]]:
    # Settings may be lists, which have no hash.
    groups = grouped(results, lambda result: repr([result.config.get(name) for name in by]))
    return list(groups.values())


def check_names(kind: str, names: Iterable[str], known: Iterable[Mapping[str, Any]]) -> None:
    """Raise UnknownNameError for a name that no result has; without results, any name is fine."""
    every = {name for one in known for name in one}
    for name in names:
        if every and name not in every:
            raise UnknownNameError(kind, name, every)


def current_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without removed settings, unless they differ from their default."""
    return {
        name: value
        for name, value in config.items()
        if name not in REMOVED or value not in (REMOVED[name], None)
    }


def capability_note(results: Iterable[RunResult]) -> str:
    """Return a warning if the runs come from CPUs with different known capabilities."""
    found = {result.versions.get("cpu_capability") for result in results} - {None, ""}
    if len(found) < 2:
        return ""
    return (
        f"the runs come from CPUs with different capabilities ({', '.join(sorted(map(str, found)))}"
        "), which changes results"
    )


# --- names in tables and figures ------------------------------------------------------------------

_UPPER = (
    *("er", "mir", "aser", "gss", "scr", "der", "der++", "foster", "memo", "drc", "er-ace"),
    *("a-gem", "ewc", "wa", "mnist", "cifar-10", "cifar-100"),
)
NAMES = {
    **{name: name.upper() for name in _UPPER},
    **{"bic": "BiC", "gdumb": "GDumb", "icarl": "iCaRL", "lwf": "LwF", "digits": "Digits"},
    "er-ridge": "ER-Ridge",
    "gss-stream": "GSS (stream)",
    "der-expandable": "DER (expandable)",
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "fashion-mnist": "Fashion-MNIST",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
}
"""Names as papers write them. Other names are shown unchanged."""


def display(name: str) -> str:
    """Return the display name of a data set or method.

    >>> display("fashion-mnist"), display("folder:photos")
    ('Fashion-MNIST', 'folder:photos')
    """
    return NAMES.get(name, name)


def show_setting(value: Any) -> str:
    """Return the value of a setting as short text.

    >>> show_setting([5, 5]), show_setting(None), show_setting({"beta": 0.5})
    ('5 5', '–', 'beta=0.5')
    """
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return str(value)


def format_setting(name: str, value: Any) -> str:
    """Return a setting with its short name; empty if it is not set.

    >>> format_setting("epochs", 5), format_setting("options", {"beta": 0.5})
    ('epochs 5', 'beta 0.5')
    """
    if isinstance(value, dict):
        return " ".join(f"{key} {number}" for key, number in value.items())
    return "" if value is None or value == [] else f"{short_name(name)} {show_setting(value)}"
