"""The numbers that the GradMix paper reports.

`paper.json` has them as printed. A row's setting names what the table varies, with the names that
runs use. `randaugment` counts as a mix, as in the paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gradmix.errors import InputError
from gradmix.methods import find_method
from gradmix.mixing import RECIPES, Recipe, parse_recipe
from gradmix.runs.config import config_for
from gradmix.runs.groups import current_settings
from gradmix.runs.measures import Summary
from gradmix.settings import MixSettings

ACCURACY = "average accuracy"

FREE = {
    *("seed", "threads", "device"),
    *MixSettings.model_fields.keys() - {"mix", "alpha", "mix_first_task"},
}
"""Settings that a comparison ignores. `_mix_in_paper` checks the τ of Remix."""

SEEDS = 5
"""Behind every number with a standard deviation."""

Setting = Mapping[str, str | float]


@dataclass(frozen=True)
class PaperRow:
    """Numbers of one setting by data set."""

    setting: Setting
    values: Mapping[str, Summary]


@dataclass(frozen=True)
class PaperTable:
    """A table, or the numbers in the text beside a figure."""

    key: str
    label: str  # in the LaTeX source
    caption: str
    quantity: str  # what the numbers are
    rows: tuple[PaperRow, ...]

    def find(self, data: str, setting: Setting) -> Summary | None:
        """Return the number of a data set in the row with exactly this setting."""
        found = (row.values.get(data) for row in self.rows if row.setting == setting)
        return next(found, None)


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """Return all tables by key.

    >>> row = paper_tables()["main-er"].rows[0]
    >>> row.setting, row.values["mnist"].mean
    ({'method': 'er', 'mix': 'none'}, 0.896)
    """
    text = resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8")
    tables = json.loads(text)["tables"]
    return {
        key: PaperTable(key, **{**table, "rows": tuple(map(_row, table["rows"]))})
        for key, table in tables.items()
    }


def _row(row: Mapping[str, Any]) -> PaperRow:
    values = {
        data: Summary(mean, std, 1 if std is None else SEEDS)
        for data, (mean, std) in row["values"].items()
    }
    return PaperRow(row["setting"], values)


def paper_accuracy(config: Mapping[str, Any]) -> Summary | None:
    """Return the paper's average accuracy for the setting of a run.

    The run must follow the protocol of its data set, except for what the paper varies: method,
    mix, exemplars per class, α of GradMix and ViT. `gradmix` and `gradmix+` with any τ and tables
    are compared with the paper's GradMix; `gradient-keep-original` partners with its ablation.
    RandAugment may come alone or after the usual transforms.

    Args:
        config: A configuration as in result files. Missing settings have their defaults.

    Returns:
        None if the paper has no such setting, or if gradmix does not know a name in it.

    >>> paper_accuracy(config_for("mnist", method="foster", mix="gradmix+").to_json())
    Summary(mean=0.973, std=0.003, n=5)
    """
    data, tables = config["data"], paper_tables().values()
    if not any(data in row.values for table in tables for row in table.rows):
        return None
    try:
        setting = _setting_in_paper(config)
    except InputError:  # a method, mix or option that gradmix does not know
        return None
    if setting is None:
        return None
    found = (table.find(data, setting) for table in tables if table.quantity == ACCURACY)
    return next((value for value in found if value is not None), None)


def _setting_in_paper(config: Mapping[str, Any]) -> Setting | None:
    """Return what the row of the paper's table varies; None if the paper has no such mix."""
    data = config["data"]
    config = {**config_for(data, mix=config.get("mix")).to_json(), **config}
    recipe = parse_recipe(**{name: config[name] for name in MixSettings.model_fields})
    mix, method = _mix_in_paper(recipe), find_method(config["method"])
    if mix is None or method.read_options(config["options"]) != method.options:
        return None
    usual = config_for(data, method=config["method"], mix=mix)
    expected = usual.to_json() | {"alpha": usual.recipe and usual.recipe.alpha}
    found = current_settings(config)
    found |= {"mix": mix, "options": {}, "alpha": recipe and recipe.alpha}
    with_randaugment = ["randaugment"], [*usual.transforms, "randaugment"]
    if mix == "none" and config["transforms"] in with_randaugment:
        mix, found["transforms"] = "randaugment", expected["transforms"]
    differing = {k: v for k, v in found.items() if k not in FREE and v != expected.get(k)}
    setting = {"method": config["method"], "mix": mix, **differing}
    if recipe is not None and recipe.partners == "gradient-keep-original":
        setting["partners"] = recipe.partners
    return setting


def _mix_in_paper(recipe: Recipe | None) -> str | None:
    """Return the paper's name of a mix; None if its tables do not have it."""
    if recipe is None:
        return "none"
    if recipe.uses_gradients:
        ours = recipe.blend != "linear" or recipe.partners == "gradient-class-balanced"
        return None if ours else "gradmix"
    for name, known in RECIPES.items():
        if recipe.axes == known.axes and recipe.label_rule == known.label_rule:
            return name
    return None
