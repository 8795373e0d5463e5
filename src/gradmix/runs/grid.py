"""Grids of runs: settings with several values each, from a TOML file or from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from gradmix._setting_types import parse_seeds
from gradmix.errors import FileError, InputError, UnknownNameError
from gradmix.files.json_file import read_bytes
from gradmix.runs.config import RunConfig, config_for
from gradmix.settings import DEFAULTS

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Grid = Mapping[str, list[Any]]
"""The values of each setting that does not keep the default of the data set."""

MOST_BYTES = 1 << 20
MOST_NESTED = 100  # opening brackets in a row; Python's parser is recursive


def expand(
    grids: Iterable[Grid], skip_impossible: bool = False
) -> tuple[list[RunConfig], dict[str, str]]:
    """Return the configurations of all grids, each once, and the skipped combinations.

    Args:
        grids: For each setting its values; every grid needs `data`.
        skip_impossible: Skip combinations that make no sense instead of raising an error.

    Returns:
        The configurations, and for each skipped combination the reason.

    Raises:
        InputError: If a name is unknown, nothing remains, or a combination makes no sense and is
            not to be skipped.
    """
    configs: dict[RunConfig, None] = {}
    skipped: dict[str, str] = {}
    for grid in grids:
        for settings in _combinations(grid):
            found, name = _config_or_reason(settings), _combination(grid, settings)
            if isinstance(found, RunConfig):
                configs[found] = None
            elif skip_impossible:
                skipped[name] = found
            else:
                raise InputError(
                    f"{name}: {found}; --skip-impossible, or skip_impossible=True, skips it"
                )
    if skipped and not configs:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"no combination is possible; {name}: {reason}")
    return list(configs), skipped


def _config_or_reason(settings: dict[str, Any]) -> RunConfig | str:
    """Return the configuration, or why it makes no sense."""
    try:
        return config_for(**settings)
    except UnknownNameError:
        raise
    except InputError as error:
        return str(error)


def _combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield one value for each setting; the seed changes fastest, the data set slowest."""
    if not grid.get("data"):
        raise InputError("a grid has no data; name at least one data set")
    order = ["data", "method", "mix", *RunConfig.model_fields]
    names = sorted(grid, key=lambda name: (name == "seed", order.index(name)))
    for values in product(*(grid[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _combination(grid: Grid, settings: Mapping[str, Any]) -> str:
    """Return a short name: data set, method, mix and the settings that vary."""
    return ", ".join(
        f"{name} {value}"
        for name, value in settings.items()
        if name in ("data", "method", "mix") or (len(grid[name]) > 1 and name != "seed")
    )


def read_grids(path: str | os.PathLike[str], **overrides: list[Any]) -> list[Grid]:
    """Return the grids of a TOML file: one per `[[grid]]`, or a single one without any.

    Settings before the first `[[grid]]` apply to all grids. A list means several values; for a
    setting that is a list itself, a list of lists does.

    Args:
        path: The TOML file.
        **overrides: Values that replace those in the file.

    Raises:
        InputError: If the file cannot be read or has an unknown or empty setting.
    """
    name = os.fspath(path)
    content = _read_toml(name)
    tables = content.pop("grid", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{name}: grid must be tables, each begun by [[grid]]")
    return [
        {**_axes(name, content), **_axes(name, table), **overrides}  # the last one counts
        for table in tables
    ]


def _read_toml(name: str) -> dict[str, Any]:
    try:
        text = read_bytes(name, MOST_BYTES).decode()
        if "[" * MOST_NESTED in "".join(text.split()):
            raise ValueError("the lists are nested too deeply")
        return tomllib.loads(text)
    except (FileError, ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be read as TOML: {error}") from error


def _axes(name: str, table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each setting in a table."""
    if "seed" in table and "seeds" in table:
        raise InputError(f"{name} has both seed and seeds; give one of them")
    axes = {}
    for key, value in table.items():
        if value == []:
            raise InputError(f"{name}: {key} is an empty list; give at least one value")
        if key == "seeds":
            axes["seed"] = parse_seeds(value if isinstance(value, list) else [value])
        elif key in RunConfig.model_fields:
            axes[key] = axis(key, value)
        else:
            known = [*RunConfig.model_fields, "grid", "seeds"]
            raise UnknownNameError(f"setting in {name}", key, known)
    return axes


def axis(name: str, value: Any) -> list[Any]:
    """Return the values of a setting in a TOML file.

    >>> axis("epochs", 5), axis("epochs", [5, 10])
    ([5], [5, 10])
    >>> axis("increments", [5, 5]), axis("increments", [2, [5, 5]])
    ([[5, 5]], [2, [5, 5]])
    >>> axis("class_order", ["natural", "seed:1993"])
    ['natural', 'seed:1993']
    """
    if not isinstance(value, list):
        return [value]
    if name == "class_order":
        return value if any(isinstance(one, list | str) for one in value) else [value]
    if isinstance(DEFAULTS.get(name), list | dict):  # a setting that is a list itself
        return value if any(isinstance(one, list | dict) for one in value) else [value]
    return value
