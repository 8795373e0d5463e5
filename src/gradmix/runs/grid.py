"""Grids of runs: settings with several values each, from a TOML file or from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from gradmix.errors import InputError, UnknownNameError
from gradmix.runs.config import RunConfig, config_for
from gradmix.runs.seeds import parse_seeds

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Grid = Mapping[str, list[Any]]
"""The values of each setting that is not left as the data set's protocol has it."""

KINDS = {f.name: str(f.type) for f in fields(RunConfig)}


def expand(
    grids: Iterable[Grid], skip_impossible: bool = False
) -> tuple[list[RunConfig], dict[str, str]]:
    """Every combination of every grid, each once, and those without meaning, with the reason.

    Of the latter there are none unless `skip_impossible`: InputError for the first. An unknown
    name is an error in any case, and so is a grid of which nothing remains.
    """
    configs: dict[RunConfig, None] = {}
    skipped: dict[str, str] = {}
    for grid in grids:
        for settings in _combinations(grid):
            found = _config_or_reason(settings)
            if isinstance(found, RunConfig):
                configs[found] = None
            elif skip_impossible:
                skipped[_combination(grid, settings)] = found
            else:
                name = _combination(grid, settings)
                raise InputError(
                    f"{name}: {found}; --skip-impossible, or skip_impossible, leaves such runs out"
                )
    if skipped and not configs:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"no combination is possible; {name}: {reason}")
    return list(configs), skipped


def _config_or_reason(settings: dict[str, Any]) -> RunConfig | str:
    """The configuration, or why it has no meaning."""
    try:
        return config_for(**settings)
    except UnknownNameError:
        raise
    except InputError as error:
        return str(error)


def _combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """One value for each setting; the seed changes fastest, the data slowest."""
    if not grid.get("data"):
        raise InputError("a grid has no data; name one data set or more")
    names = sorted(grid, key=lambda name: (name == "seed", list(KINDS).index(name)))
    for values in product(*(grid[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _combination(grid: Grid, settings: Mapping[str, Any]) -> str:
    """What a person calls a combination: what it is about, and what varies."""
    about = ("data", "method", "mix")
    return ", ".join(
        f"{name} {value}"
        for name, value in settings.items()
        if name in about or (len(grid[name]) > 1 and name != "seed")
    )


def read_grids(path: str | os.PathLike[str], **overrides: list[Any]) -> list[Grid]:
    """The grids of a TOML file: one for every [[grid]], or one if there is none.

    Settings before the first [[grid]] are common to all. A list is several values; where a
    setting is a list itself, a list of lists is. `overrides` replace what the file says.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}") from error
    tables = content.pop("grid", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}: grid must be tables, each begun by [[grid]]")
    return [
        {**_axes(path, content), **_axes(path, table), **overrides}  # the last one counts
        for table in tables
    ]


def _axes(path: Path, table: Mapping[str, Any]) -> dict[str, list[Any]]:
    axes = {}
    if "seed" in table and "seeds" in table:
        raise InputError(f"{path} has both seed and seeds; give one of them")
    for name, value in table.items():
        if name == "seeds":
            axes["seed"] = parse_seeds(value if isinstance(value, list) else [value])
        elif name in KINDS:
            axes[name] = axis(name, value)
        else:
            raise UnknownNameError(f"setting in {path}", name, [*KINDS, "grid", "seeds"])
        if not axes.get("seed", [0]) or not axes.get(name, [0]):
            raise InputError(f"{path}: {name} is an empty list; give one value or more")
    return axes


def axis(name: str, value: Any) -> list[Any]:
    """The values of a setting as a TOML file has them.

    >>> axis("epochs", 5), axis("epochs", [5, 10])
    ([5], [5, 10])
    >>> axis("increments", [5, 5]), axis("increments", [2, [5, 5]])
    ([[5, 5]], [2, [5, 5]])
    >>> axis("class_order", ["natural", "seed:1993"])
    ['natural', 'seed:1993']
    """
    if not isinstance(value, list):
        return [value]
    kind = KINDS[name]
    if "tuple" not in kind:
        return value
    nested = (list, dict, str) if kind.startswith("str") else (list, dict)
    return value if any(isinstance(one, nested) for one in value) else [value]
