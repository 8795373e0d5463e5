"""Plugins: methods, mixes, networks, data sets and metrics that do not come with gradmix.

`register` adds one under a name. Every command, worker process, checkpoint and table then knows the
name. docs/cookbook.md builds one plugin of each kind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from gradmix.data import DATASETS, DataSetInfo
from gradmix.errors import InputError, UnknownNameError
from gradmix.loggers import LOGGERS, NAME
from gradmix.methods import METHODS, Method, MethodInfo
from gradmix.mixing import ABOUT, RECIPES, Recipe, parse_recipe
from gradmix.mixing.mixer import BLEND
from gradmix.mixing.plan import DRAW, SHARES
from gradmix.mixing.recipe import BLENDS, LABELS, PARTNERS
from gradmix.models import MODELS, ModelInfo
from gradmix.settings import PRESETS
from gradmix.training.metrics import LOWER_IS_BETTER, METRICS

TABLES: dict[str, dict[str, Any]] = {
    "method": METHODS,
    "partners": DRAW,
    "blend": BLEND,
    "labels": SHARES,
    "model": MODELS,
    "dataset": DATASETS,
    "metric": METRICS,
    "logger": LOGGERS,
    "mix": RECIPES,  # the last: its text may name partners, blends and labels
}
"""Where each kind of plugin is looked up."""

_INFO: dict[str, Any] = {"method": MethodInfo, "model": ModelInfo, "dataset": DataSetInfo}
_AXES = {"partners": PARTNERS, "blend": BLENDS, "labels": LABELS}

_PLURALS = {"mix": "mixes", "partners": "partners", "labels": "labels"}
GROUPS = {f"gradmix.{_PLURALS.get(kind, f'{kind}s')}": kind for kind in TABLES}
"""The entry points through which an installed package offers plugins."""

RESERVED = ("none", "auto", "cutmix", "manifold")


class Plugin(NamedTuple):
    """A registration; `restore` repeats it in another process."""

    kind: str
    name: str
    thing: Any
    summary: str
    source: str
    defaults: Mapping[str, Any]
    lower_is_better: bool


_plugins: dict[tuple[str, str], Plugin] = {}
_broken: dict[tuple[str, str], str] = {}  # entry points that cannot be loaded, and why


def register(
    kind: str,
    name: str,
    thing: Any,
    *,
    summary: str = "",
    source: str = "plugin",
    defaults: Mapping[str, Any] | None = None,
    lower_is_better: bool = False,
) -> None:
    """Add a plugin under a name. A second plugin of the same kind and name replaces the first.

    The kinds and what they need:

    - method: a class derived from `gradmix.methods.Method`, such as `ER`
    - mix: a `Recipe`, or text such as "shuffle:linear:remix"
    - partners: a function of a `Request` that returns `Partners`; it needs pair tables if its name
      begins with "gradient"
    - blend: a function (x, partners, lam) that returns the mixed inputs
    - labels: a function like `gradmix.mixing.plan.remix` that returns label shares
    - model: a function (input_shape, outputs) that returns a `Network`
    - dataset: a function that returns a `DataSet`; `defaults` are its settings
    - metric: a function (matrix, initial) of accuracies that returns a number
    - logger: a function (place, name) that returns a `gradmix.loggers.Logger`

    Args:
        kind: One of the kinds above.
        name: The name in commands and files: letters, digits and + . _ -
        thing: What is registered.
        summary: One line for `gradmix list`. Default: the first line of the docstring.
        source: What to cite.
        defaults: Settings of runs on a data set.
        lower_is_better: Whether lower values of a metric are better.

    Raises:
        InputError: If the name belongs to gradmix itself, or the thing does not fit the kind.

    >>> register("mix", "half-remix", "shuffle:linear:remix")
    >>> from gradmix import config_for
    >>> config_for("digits", mix="half-remix").recipe.labels
    'remix'
    """
    if kind not in TABLES:
        raise UnknownNameError("kind of plugin", kind, TABLES)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"name is {name!r}; use letters, digits and + . _ -")
    known = name in TABLES[kind] or name in RESERVED
    if known and (kind, name) not in _plugins:
        raise InputError(f"name is {name!r}, which is a {kind} of gradmix; choose another")
    if kind == "method":
        fits = isinstance(thing, type) and issubclass(thing, Method)
        needed = "a class derived from Method"
    elif kind == "mix":
        fits, needed = isinstance(thing, (Recipe, str)), "a Recipe or text"
    else:
        fits, needed = callable(thing), "a function"
    if not fits:
        raise InputError(f"thing is {thing!r}; a {kind} is {needed}")
    lines = (getattr(thing, "__doc__", None) or "").strip().splitlines()
    summary = summary or (lines[0] if lines and callable(thing) else name)
    _add(Plugin(kind, name, thing, summary, source, dict(defaults or {}), lower_is_better))


def _add(plugin: Plugin) -> None:
    """Make a plugin known under its name."""
    kind, name, thing = plugin.kind, plugin.name, plugin.thing
    if kind in _INFO:
        thing = _INFO[kind](plugin.summary, plugin.source, thing)
    elif kind == "mix":
        thing = parse_recipe(thing) if isinstance(thing, str) else thing
        if thing is None:
            raise InputError("thing is 'none', which does not mix; give partners:blend:labels")
        ABOUT[name] = (plugin.summary, plugin.source)
    elif kind in _AXES and name not in _AXES[kind]:
        _AXES[kind].append(name)
    elif kind == "metric":
        (LOWER_IS_BETTER.add if plugin.lower_is_better else LOWER_IS_BETTER.discard)(name)
    if kind == "dataset":
        PRESETS[name] = dict(plugin.defaults)
    TABLES[kind][name] = thing
    _plugins[kind, name] = plugin


def registered() -> list[Plugin]:
    """Return all plugins, for `restore` in another process."""
    return list(_plugins.values())


def restore(plugins: Iterable[Plugin]) -> None:
    """Register the plugins of another process."""
    for plugin in plugins:
        _add(plugin)


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules that register plugins, from the current folder or the installed packages.

    Raises:
        InputError: If a module cannot be imported; the message names it.
    """
    for name in modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            import_module(name)
        except InputError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(
                f"import is {name!r}, which cannot be imported ({reason}); name a module in this "
                "folder, without .py, or an installed one"
            ) from error


@cache
def load_entry_points() -> None:
    """Register the plugins that installed packages offer; broken ones are remembered."""
    for group, kind in GROUPS.items():
        for point in entry_points(group=group):
            try:  # another package must not stop gradmix
                register(kind, point.name, point.load())
            except Exception as error:  # noqa: PERF203
                _broken[kind, point.name] = f"{point.value}: {type(error).__name__}: {error}"


def explain(error: UnknownNameError) -> UnknownNameError:
    """Return an error about an unknown name with a hint that it may be a missing plugin."""
    kind = {"data set": "dataset", "network": "model"}.get(error.kind, error.kind)
    missing = "a plugin needs --import MODULE"
    if kind in TABLES and missing not in str(error):
        broken = _broken.get((kind, str(error.name)))
        hint = f"the plugin cannot be loaded: {broken}" if broken else missing
        error.args = (f"{error}; {hint}",)
    return error
