"""Groups of results: which runs belong together, and which groups can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gradmix.errors import InputError, ResultError, UnknownNameError
from gradmix.mixing import ABOUT, Recipe, parse_recipe
from gradmix.runs.config import CONTROL_PARTNERS
from gradmix.runs.results import RunResult
from gradmix.runs.statistics import Difference, Summary, paired_difference, summarize
from gradmix.runs.tables import show_setting
from gradmix.settings import REMOVED, CriterionSettings, MixSettings
from gradmix.training.metrics import LOWER_IS_BETTER

BY = ("data", "method", "mix")
"""The settings that always name a group."""

OF_THE_MIX = (*MixSettings.model_fields, *CriterionSettings.model_fields, *REMOVED, "analyses")
"""Settings of the mix, or of what is measured. Groups that differ only in these are rivals."""

BELONGS = {"mix": OF_THE_MIX, "method": ("method", "options", "head")}
"""Settings that belong to another one, and may differ where that one does."""

ACCURACY = "average_accuracy"


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
        return " ".join(
            str(value) if name in BY else f"{name}={show_setting(value)}"
            for name, value in self.key.items()
        )

    @property
    def uses_gradients(self) -> bool:
        """Whether gradients choose the partners."""
        return uses_gradients(self.config)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return a metric of every run that has it, by seed."""
        return {r.config["seed"]: r.metrics[metric] for r in self.results if metric in r.metrics}

    def metric(self, name: str) -> Summary | None:
        """Summarize a metric over the runs that have it; None if no run has it."""
        values = self.by_seed(name)
        return summarize(list(values.values())) if values else None


AnyGroup = TypeVar("AnyGroup", bound=Group)
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
    _check_settings(results, where)
    return [
        result
        for result in results
        if all(result.config.get(name) in allowed for name, allowed in where.items())
    ]


def in_order(results: Iterable[RunResult]) -> list[RunResult]:
    """Sort by data, method and mix (as in `gradmix list`), then by all other settings."""
    mixes = list(ABOUT)

    def place(value: Any) -> tuple[int, Any]:
        if isinstance(value, str) and value in mixes:
            return 0, mixes.index(value)
        if isinstance(value, (int, float)):
            return 1, value
        return 2, show_setting(value)

    def places(result: RunResult) -> list[tuple[int, Any]]:
        rest = [value for name, value in result.config.items() if name not in (*BY, "seed")]
        first = [result.config[name] for name in BY]
        return [place(value) for value in (*first, *rest, result.config["seed"])]

    return sorted(results, key=places)


def group_results(results: Iterable[RunResult], by: Sequence[str] | None = None) -> list[Group]:
    """Group results that agree in the settings `by`, in order of first appearance.

    Args:
        results: Any results. Old results get the defaults of newer settings.
        by: Names of settings. Default: data, method and mix, plus every setting that varies;
            settings of a mix only where they vary within it.

    Raises:
        UnknownNameError: No result has a setting of this name.
        ResultError: A group has two runs with the same seed.
    """
    results = _with_current_settings(results)
    _check_settings(results, by or ())
    chosen = _varying_settings(results) if by is None else tuple(by)
    groups = [
        Group(
            {name: found[0].config.get(name) for name in chosen},
            tuple(sorted(found, key=lambda result: int(result.config["seed"]))),
        )
        for found in _agreeing(results, chosen)
    ]
    for group in groups:
        if len(set(group.seeds)) < len(group.seeds) and "seed" not in chosen:
            others = ", ".join(differing(group.results, chosen)) or "only in their protocol version"
            raise ResultError(
                f"the group {group.label} has a seed more than once: its runs differ in {others}; "
                "also group by that, or select fewer runs"
            )
    return groups


def differing(results: Iterable[RunResult], by: Sequence[str]) -> tuple[str, ...]:
    """Return the settings, except the seed, that differ between results that agree in `by`."""
    names: dict[str, None] = {}
    for together in _agreeing(list(results), by):
        first = together[0].config
        for config in (result.config for result in together[1:]):
            every = dict.fromkeys((*first, *config))
            names.update({k: None for k in every if config.get(k) != first.get(k)})
    return tuple(name for name in names if name != "seed")


def _varying_settings(results: Sequence[RunResult]) -> tuple[str, ...]:
    chosen = BY + differing(results, BY)
    across = differing(results, [name for name in BY if name != "mix"])
    return chosen + tuple(name for name in across if name not in (*chosen, *OF_THE_MIX))


def _agreeing(results: Sequence[RunResult], by: Sequence[str]) -> list[list[RunResult]]:
    # Settings may be lists, which have no hash.
    groups = grouped(results, lambda result: repr([result.config.get(name) for name in by]))
    return list(groups.values())


def _check_settings(results: Sequence[RunResult], names: Iterable[str]) -> None:
    known = {name for result in results for name in result.config}
    for name in names:
        if results and name not in known:
            raise UnknownNameError("setting", name, known)


def current_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without removed settings, unless they differ from their default."""
    return {
        name: value
        for name, value in config.items()
        if name not in REMOVED or value not in (REMOVED[name], None)
    }


def _with_current_settings(results: Iterable[RunResult]) -> list[RunResult]:
    """Give all results the same settings: defaults for newer ones, None for removed ones."""
    results = [replace(result, config=current_settings(result.config)) for result in results]
    known = dict.fromkeys(name for result in results for name in result.config)
    if all(len(result.config) == len(known) for result in results):
        return results
    from gradmix.settings import DEFAULTS  # slow to import and rarely needed

    usual = {name: DEFAULTS.get(name) for name in known}
    usual |= {name: None for name in REMOVED if name in known}
    return [replace(result, config={**usual, **result.config}) for result in results]


# --- comparable groups --------------------------------------------------------------------------


def are_rivals(one: Group, other: Group) -> bool:
    """Whether two groups differ only in settings of the mix, or are not grouped by mix."""
    names = [name for name in one.key if name not in OF_THE_MIX]
    if "mix" not in one.key:
        names = [name for name in names if name == "data"]
    return all(one.key[name] == other.key.get(name) for name in names)


def parse_condition(text: str, option: str = "where") -> tuple[str, Any]:
    """Return name and value of name=value; the value is read as JSON if possible.

    Args:
        text: The condition.
        option: What the condition is for, in the error message.

    Raises:
        InputError: If there is no equals sign.

    >>> parse_condition("exemplars_per_class=16"), parse_condition("mix=remix")
    (('exemplars_per_class', 16), ('mix', 'remix'))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} is {text!r}; give name=value, such as exemplars_per_class=16")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parse_against(text: str, groups: Sequence[Group]) -> tuple[str, Any]:
    """Return setting and value of what groups are compared with.

    Args:
        text: A mix or method that a group has, or name=value for any other setting.
        groups: The groups.

    Raises:
        InputError: If the groups are not grouped by the setting.
    """
    if "=" in text:
        name, value = parse_condition(text, "against")
    else:
        methods = [group.key.get("method") for group in groups]
        name, value = "method" if text in methods else "mix", text
    if any(name not in group.key for group in groups):
        raise InputError(f"against is {text!r}, but the results are not grouped by {name}")
    return name, value


def find_base(group: Group, groups: Sequence[Group], against: str) -> Group | None:
    """Return the group that differs from this one in what `parse_against` reads.

    Of several, the one with the same settings of the mix or method is returned.

    Returns:
        None if no group, or more than one, fits.
    """
    name, value = parse_against(against, groups)
    free = BELONGS.get(name, (name,))
    rivals = [
        other
        for other in groups
        if other.key[name] == value
        and all(other.key.get(key) == own for key, own in group.key.items() if key not in free)
    ]
    same = {key: own for key, own in group.key.items() if key != name}
    exact = [other for other in rivals if {**other.key, **same} == other.key]
    found = exact or rivals
    return found[0] if len(found) == 1 else None


def is_best(group: Group, groups: Sequence[Group], metric: str) -> bool:
    """Whether no rival has a better mean. A group without rivals is not best."""
    rivals = [other for other in groups if other is not group and are_rivals(group, other)]
    own = _quality(group, metric)
    known = bool(rivals) and group.metric(metric) is not None
    return known and all(own >= _quality(rival, metric) for rival in rivals)


def best_control(
    group: Group, groups: Iterable[AnyGroup], metric: str = ACCURACY
) -> AnyGroup | None:
    """Return the best gradient-free control of a group; None if no control was run."""
    if not group.uses_gradients:
        return None
    found = [other for other in groups if is_control(other.config, group.config)]
    found = [other for other in found if other.by_seed(metric).keys() & set(group.seeds)]
    return max(found, key=lambda other: _quality(other, metric), default=None)


def gradients_add(
    group: Group, groups: Iterable[Group], metric: str = ACCURACY
) -> Difference | None:
    """Return what gradients add: the paired difference to the best gradient-free control.

    Returns:
        None if gradients do not choose the partners; an empty difference if no control was run.
    """
    if not group.uses_gradients:
        return None
    control = best_control(group, groups, metric)
    if control is None:
        return Difference(note="no control")
    return replace(compare_groups(group, control, metric), base=str(control.config["mix"]))


def compare_groups(group: Group, base: Group, metric: str = ACCURACY) -> Difference:
    """Return the paired difference of a metric between two groups."""
    return paired_difference(group.by_seed(metric), base.by_seed(metric))


def _quality(group: Group, metric: str) -> float:
    summary = group.metric(metric)
    if summary is None:
        return -math.inf
    return -summary.mean if metric in LOWER_IS_BETTER else summary.mean


def is_control(control: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run is a gradient-free control of another.

    A control has shuffled or class-balanced partners. Its blend, labels, α, τ and all settings
    outside the mix are the same. Both mix the first task, or neither, unless both leave that to
    the mix.
    """
    ours, theirs = recipe_of(config), recipe_of(control)
    if ours is None or theirs is None or not ours.uses_gradients:
        return False
    same = _labels_of(ours) == _labels_of(theirs) and theirs.partners in CONTROL_PARTNERS
    same = same and (
        ours.mix_first_task == theirs.mix_first_task
        or ours.mixes_first_task == theirs.mixes_first_task
    )
    return same and settings_without(OF_THE_MIX, config) == settings_without(OF_THE_MIX, control)


def _labels_of(recipe: Recipe) -> tuple[object, ...]:
    return recipe.blend, *recipe.label_rule, recipe.alpha


def recipe_of(config: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of a run; None without mixing and for a mix that gradmix does not know."""
    settings: dict[str, Any] = {name: config.get(name) for name in MixSettings.model_fields}
    try:
        return parse_recipe(**settings)
    except InputError:
        return None


def uses_gradients(config: Mapping[str, Any]) -> bool:
    """Whether gradients choose the partners of a run, including removed `gradient-…` mixes."""
    recipe = recipe_of(config)
    return str(config["mix"]).startswith("gradient") if recipe is None else recipe.uses_gradients


def settings_without(names: Collection[str], config: Mapping[str, Any]) -> str:
    """Return all settings except these and the seed, as text that can be compared."""
    rest = current_settings(config)
    return json.dumps(
        {k: v for k, v in rest.items() if k not in names and k != "seed" and v is not None},
        sort_keys=True,
    )


def capability_note(results: Iterable[RunResult]) -> str:
    """Return a warning if the runs come from CPUs with different known capabilities."""
    found = {result.versions.get("cpu_capability") for result in results} - {None, ""}
    if len(found) < 2:
        return ""
    return (
        f"the runs come from CPUs with different capabilities ({', '.join(sorted(map(str, found)))}"
        "), which changes results"
    )
