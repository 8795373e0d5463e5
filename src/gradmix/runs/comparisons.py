"""Groups → comparisons: the best of its rivals, paired differences, and what gradients add.

Two groups are compared seed by seed, because runs of one seed start from the same weights and see
the same batches. All settings that are not compared must be the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from gradmix.errors import InputError
from gradmix.runs.config import CONTROL_PARTNERS, recipe_of
from gradmix.runs.groups import OF_THE_METHOD, OF_THE_MIX, Group
from gradmix.runs.measures import Difference, Summary, paired_difference
from gradmix.settings import DEFAULTS
from gradmix.training.metrics import LOWER_IS_BETTER

ACCURACY = "average_accuracy"

AnyGroup = TypeVar("AnyGroup", bound=Group)


class Cell(NamedTuple):
    """One quantity: its summary over seeds and what it is compared with."""

    value: Summary | None = None  # None: nothing was run
    reference: Summary | None = None  # the paper's number
    difference: Difference | None = None  # to another mix
    gradients: Difference | None = None  # what gradients add
    best: bool = False


def compare(
    group: Group, groups: Sequence[Group], metric: str = ACCURACY, against: str | None = None
) -> Cell:
    """Return a metric of a group and its comparisons with the others; see `parse_against`."""
    return Cell(
        group.metric(metric),
        difference=None if against is None else difference_to(group, groups, metric, against),
        gradients=gradients_add(group, groups, metric) if "mix" in group.key else None,
        best=is_best(group, groups, metric),
    )


def compare_groups(group: Group, base: Group, metric: str = ACCURACY) -> Difference:
    """Return the paired difference of a metric between two groups."""
    return paired_difference(group.by_seed(metric), base.by_seed(metric))


def agree(group: Group, other: Group, free: Collection[str]) -> bool:
    """Whether two groups have the same settings, except for the `free` ones."""
    return all(own == other.key.get(name) for name, own in group.key.items() if name not in free)


def is_best(group: Group, groups: Iterable[Group], metric: str = ACCURACY) -> bool:
    """Whether no rival has a better mean. A group without rivals is not best.

    Rivals differ only in settings of the mix. If the groups are not grouped by mix, all groups of
    the same data are rivals.
    """
    free: Collection[str] = OF_THE_MIX if "mix" in group.key else group.key.keys() - {"data"}
    rivals = [other for other in groups if other is not group and agree(group, other, free)]
    own = quality(group, metric)
    known = bool(rivals) and own > -math.inf
    return known and all(own >= quality(rival, metric) for rival in rivals)


def quality(group: Group, metric: str = ACCURACY) -> float:
    """Return the mean of a metric, with its sign changed if lower is better."""
    summary = group.metric(metric)
    if summary is None:
        return -math.inf
    return -summary.mean if metric in LOWER_IS_BETTER else summary.mean


# --- a base of the user's choice ----------------------------------------------------------------


def parse_condition(text: str, option: str = "where") -> tuple[str, Any]:
    """Return name and value of name=value; the value is read as JSON if possible.

    Raises:
        InputError: If there is no equals sign; the message names the option.

    >>> parse_condition("epochs=16"), parse_condition("mix=remix")
    (('epochs', 16), ('mix', 'remix'))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} is {text!r}; give name=value, such as epochs=20")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parse_against(text: str, groups: Sequence[Group]) -> tuple[str, Any]:
    """Return setting and value of a mix or method that a group has, or of name=value.

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


def find_base(group: Group, groups: Sequence[AnyGroup], against: str) -> AnyGroup | None:
    """Return the group that differs from this one in what `parse_against` reads.

    If there are several, the one with the same settings of the mix or method is returned. None if
    no group, or more than one, fits.
    """
    name, value = parse_against(against, groups)
    free = {"mix": OF_THE_MIX, "method": OF_THE_METHOD}.get(name, (name,))
    rivals = [other for other in groups if other.key[name] == value and agree(group, other, free)]
    found = [other for other in rivals if agree(group, other, (name,))] or rivals
    return found[0] if len(found) == 1 else None


def difference_to(group: Group, groups: Sequence[Group], metric: str, against: str) -> Difference:
    """Return the paired difference to the group that `find_base` finds; empty for that group."""
    base = find_base(group, groups, against)
    if base is None:
        return Difference(note=f"no runs of {against} to compare with")
    return Difference() if base is group else compare_groups(group, base, metric)


# --- gradient-free controls ---------------------------------------------------------------------


def gradients_add(
    group: Group, groups: Iterable[Group], metric: str = ACCURACY
) -> Difference | None:
    """Return what gradients add: the paired difference to the best gradient-free control.

    None if gradients do not choose the partners; an empty difference if no control was run.
    """
    if not uses_gradients(group.config):
        return None
    control = best_control(group, groups, metric)
    if control is None:
        return Difference(note="no control")
    return replace(compare_groups(group, control, metric), base=str(control.config["mix"]))


def best_control(
    group: Group, groups: Iterable[AnyGroup], metric: str = ACCURACY
) -> AnyGroup | None:
    """Return the best gradient-free control of a group; None if no control was run."""
    seeds = set(group.seeds)
    found = [other for other in groups if is_control(other.config, group.config)]
    found = [other for other in found if other.by_seed(metric).keys() & seeds]
    return max(found, key=lambda other: quality(other, metric), default=None)


def is_control(control: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run is a gradient-free control of another.

    A control has shuffled or class-balanced partners. Its blend, labels, the distribution of λ and
    all settings outside the mix are the same. Both mix the first task, or neither, unless both
    leave that to the mix.
    """
    ours, theirs = recipe_of(config), recipe_of(control)
    if ours is None or theirs is None:
        return False
    first_task = (
        ours.mix_first_task == theirs.mix_first_task
        or ours.mixes_first_task == theirs.mixes_first_task
    )
    own, other = ({**DEFAULTS, **settings} for settings in (config, control))
    outside = (own.keys() | other.keys()) - {*OF_THE_MIX, "seed"}
    return (
        ours.uses_gradients
        and theirs.partners in CONTROL_PARTNERS
        and first_task
        and (ours.blend, ours.label_rule, ours.alpha)
        == (theirs.blend, theirs.label_rule, theirs.alpha)
        and all(own.get(name) == other.get(name) for name in outside)
    )


def uses_gradients(config: Mapping[str, Any]) -> bool:
    """Whether gradients choose the partners of a run, including removed `gradient-…` mixes."""
    recipe = recipe_of(config)
    return str(config["mix"]).startswith("gradient") if recipe is None else recipe.uses_gradients
