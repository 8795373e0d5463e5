"""Descriptions of the settings, for command-line help and for `docs/settings.md`.

`python -m gradmix._setting_docs > docs/settings.md` writes the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from textwrap import wrap
from typing import Any, NamedTuple

from gradmix._setting_types import MOST, Settings
from gradmix.settings import CHOSEN_BY_CLASSIFIER, FIELDS, GROUPS, PRESETS, RunSettings


class Description(NamedTuple):
    """A setting as options and documentation show it."""

    name: str
    kind: str  # of one value: integer, number, boolean, string or any
    is_list: bool  # whether the setting itself has several values
    choices: list[str]  # the values, if they are names
    allowed: str  # values, in words
    default: Any
    help: str
    source: str
    flags: list[str]  # options on the command line, if they do not follow from the name


@cache
def describe(group: type[Settings] = RunSettings) -> dict[str, Description]:
    """Return the descriptions of the settings of a group, by name.

    >>> describe()["epochs"].allowed
    'integer ≥ 1'
    """
    properties = group.model_json_schema()["properties"]
    return {name: _description(name, schema) for name, schema in properties.items()}


_WORDS = {"string": "text", "boolean": "True or False"}
_BOUNDS = {
    **{"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"},
    **{"ge": "≥", "gt": ">", "le": "≤", "lt": "<"},
}


def _description(name: str, schema: dict[str, Any]) -> Description:
    first, *others = schema.get("anyOf", [schema])
    one = first.get("items", first)
    kind = one.get("type", "any") if name != "options" else "string"
    choices = one.get("enum", [])
    if choices:
        allowed = " or ".join(choices)
    else:
        bounds = [
            f"{sign} {one[key]:g}" for key, sign in _BOUNDS.items() if one.get(key, MOST) < MOST
        ]
        allowed = f"{_WORDS.get(kind, kind)} {', '.join(bounds)}".rstrip()
    if "items" in first:
        allowed = f"list of {allowed}"
    if {"type": "null"} in others:
        allowed += " or None"
    declared = (schema[key] for key in ("description", "source", "flags"))
    default = schema.get("default", "")
    return Description(name, kind, "items" in first, choices, allowed, default, *declared)


def settings_page() -> str:
    """Return `docs/settings.md`: a Markdown table for each group of settings."""
    introduction = (
        "This page is generated from `gradmix/settings.py`. The source of a default is the paper, "
        "PyTorch, Remix, or ours. The command line writes `epochs` as `--epochs`, a TOML file as "
        "`epochs = 20`."
    )
    lines = ["# Settings", "", introduction, ""]
    for group in GROUPS:
        lines += [f"## {(group.__doc__ or '').splitlines()[0].rstrip('.')}", ""]
        lines += ["| setting | value | default | source | meaning |", "|---|---|---|---|---|"]
        for d in describe(group).values():
            default = shown(d.default)
            lines.append(f"| `{d.name}` | {d.allowed} | {default} | {d.source} | {d.help} |")
        lines.append("")
    lines += ["## What `IncrementalClassifier` chooses from the data", ""]
    lines += ["| parameter | value | choice |", "|---|---|---|"]
    for name, (value, choice) in CHOSEN_BY_CLASSIFIER.items():
        lines.append(f"| `{name}` | {value} | {choice} |")
    lines += ["", "## Defaults of data sets that differ", ""]
    lines += ["| data set | settings |", "|---|---|"]
    for name, preset in PRESETS.items():
        values = ", ".join(f"{key}={shown(value)}" for key, value in preset.items())
        lines.append(f"| {name} | {values or 'none'} |")
    return "\n".join(lines) + "\n"


def classifier_help(names: Iterable[str], indent: int) -> str:
    """Return parameters of the classifier as lines of a docstring."""
    lines = []
    for name in names:
        value, choice = CHOSEN_BY_CLASSIFIER.get(name, (None, ""))
        text = f"{name}: {FIELDS[name].description}" + (f" {value}: {choice}." if choice else "")
        lines += wrap(text, 100, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4))
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """Return a value as help and documentation show it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
