"""The numbers that the GradMix paper reports, to hold results against.

They are in paper.json, as printed. A row's setting names what the table varies, by the names that
runs use; `randaugment` stands there as a mix, as in the paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gradmix.methods import find_method
from gradmix.methods.base import read_options
from gradmix.mixing import RECIPES, Recipe, parse_recipe
from gradmix.runs.config import RunConfig, config_for

ACCURACY = "average accuracy"

FREE = ("seed", "threads", "device", "tables", "tau")
"""Fields on which a comparison does not depend (τ of Remix itself does; see `_mix_in_paper`)."""


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper: over five seeds if it has a standard deviation."""

    mean: float
    std: float | None
    table: str  # key of the table it is from


@dataclass(frozen=True)
class PaperRow:
    """The numbers of one setting, by data set."""

    setting: Mapping[str, str | float]
    values: Mapping[str, PaperValue]


@dataclass(frozen=True)
class PaperTable:
    """A table, or numbers that stand in the text beside a figure."""

    key: str
    label: str  # in the LaTeX source
    caption: str
    quantity: str  # what the numbers are
    rows: tuple[PaperRow, ...]

    def find(self, data: str, setting: Mapping[str, str | float]) -> PaperValue | None:
        """The number of a data set in the row of exactly this setting, if there is one."""
        for row in self.rows:
            if row.setting == setting:
                return row.values.get(data)
        return None


@dataclass(frozen=True)
class PaperFact:
    """A number that only the text has."""

    value: float
    about: str


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """The tables by key.

    >>> row = paper_tables()["main-er"].rows[0]
    >>> row.setting, row.values["mnist"].mean
    ({'method': 'er', 'mix': 'none'}, 0.896)
    """
    return {
        key: PaperTable(
            key,
            table["label"],
            table["caption"],
            table["quantity"],
            tuple(_read_row(key, row) for row in table["rows"]),
        )
        for key, table in _read()["tables"].items()
    }


@cache
def paper_facts() -> Mapping[str, PaperFact]:
    """Numbers that are in no table, by name."""
    return {name: PaperFact(**fact) for name, fact in _read()["facts"].items()}


def paper_accuracy(config: Mapping[str, Any]) -> PaperValue | None:
    """The paper's average accuracy in the setting of a run; None if it has no such setting.

    `config` is a RunConfig as result files have it; a field that it lacks is taken as usual. It
    must follow the protocol of its data set but for what the paper varies: method, mix, exemplars
    per class, α of GradMix, ViT. `gradmix` and `gradmix+`, whatever their τ and tables, both
    stand beside the paper's GradMix, and with `gradient-keep-original` partners beside its
    ablation. RandAugment may come alone or after the usual transforms.

    >>> paper_accuracy(config_for("mnist", method="foster", mix="gradmix+").to_json())
    PaperValue(mean=0.973, std=0.003, table='main-foster')
    """
    data = config["data"]
    config = {**config_for(data).to_json(), **config}
    recipe = parse_recipe(config["mix"], config["alpha"], config["tables"], config["tau"])
    mix = _mix_in_paper(recipe)
    if mix is None or not _has_default_options(config):
        return None
    usual = config_for(data, method=config["method"], mix=mix)
    expected = usual.to_json() | {"alpha": usual.recipe and usual.recipe.alpha}
    found = config | {"mix": mix, "options": {}, "alpha": recipe and recipe.alpha}
    if mix == "none" and config["transforms"] in _with_randaugment(usual):
        mix, found["transforms"] = "randaugment", expected["transforms"]
    differing = {k: v for k, v in found.items() if k not in FREE and v != expected.get(k)}
    setting = {"method": config["method"], "mix": mix, **differing}
    if recipe is not None and recipe.partners == "gradient-keep-original":
        setting["partners"] = recipe.partners
    return _find_accuracy(data, setting)


def _find_accuracy(data: str, setting: Mapping[str, str | float]) -> PaperValue | None:
    for table in paper_tables().values():
        value = table.find(data, setting) if table.quantity == ACCURACY else None
        if value is not None:
            return value
    return None


def _mix_in_paper(recipe: Recipe | None) -> str | None:
    """What the paper's tables call a mix; None if they do not have it."""
    if recipe is None:
        return "none"
    if recipe.uses_gradients:
        return "gradmix" if recipe.blend == "linear" else None
    for name, known in RECIPES.items():
        same = all(
            getattr(recipe, axis) == getattr(known, axis)
            for axis in ("partners", "blend", "labels")
        )
        if same and (recipe.labels == "proportional" or recipe.tau == known.tau):
            return name
    return None


def _has_default_options(config: Mapping[str, Any]) -> bool:
    kind = find_method(config["method"]).options_type
    return read_options(kind, config["options"]) == kind()


def _with_randaugment(usual: RunConfig) -> tuple[list[str], list[str]]:
    return ["randaugment"], [*usual.transforms, "randaugment"]


def _read_row(key: str, row: Mapping[str, Any]) -> PaperRow:
    values = {data: PaperValue(mean, std, key) for data, (mean, std) in row["values"].items()}
    return PaperRow(row["setting"], values)


@cache
def _read() -> Any:
    text = resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8")
    return json.loads(text)
