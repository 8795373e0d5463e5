"""Grids of runs in TOML files: settings with several values each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from gradmix._setting_types import parse_seeds
from gradmix.errors import FileError, InputError, UnknownNameError
from gradmix.files.schema import read_bytes
from gradmix.plugins import import_plugins
from gradmix.runs.config import Grid, RunConfig
from gradmix.settings import DEFAULTS

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

MOST_BYTES = 1 << 20
MOST_NESTED = 100  # opening brackets in a row; Python's parser is recursive


def read_grids(path: str | os.PathLike[str], **overrides: list[Any]) -> list[Grid]:
    """Return the grids of a TOML file: one per `[[grid]]`, or a single one without any.

    Settings before the first `[[grid]]` apply to all grids. A list means several values; for a
    setting that is a list itself, a list of lists does. `import` names modules that register
    plugins; they are imported.

    Args:
        path: The TOML file.
        **overrides: Values that replace those in the file.

    Raises:
        InputError: If the file cannot be read or has an unknown or empty setting.
    """
    name = os.fspath(path)
    content = _read_toml(name)
    modules = content.pop("import", [])
    if isinstance(modules, str):
        modules = [modules]
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise InputError(f"{name}: import is {modules!r}; name modules")
    import_plugins(modules)
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
            known = [*RunConfig.model_fields, "grid", "import", "seeds"]
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
