"""Lines of the paper's tables and figures: their labels and the runs they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmix.errors import UnknownNameError
from gradmix.paper.numbers import Setting
from gradmix.runs.comparisons import uses_gradients
from gradmix.runs.config import CONTROL_PARTNERS, RunConfig, config_for, controls_of
from gradmix.runs.groups import display, format_setting

LABELS = {
    "none": "",
    "mixup": "+ Mixup",
    "manifold-mixup": "+ Manifold Mixup",
    "cutmix": "+ CutMix",
    "remix": "+ Remix",
    "balanced-mixup": "+ Balanced-MixUp",
    "randaugment": "+ RandAugment",
    "gradmix": "+ GradMix (Algorithm 1)",
    "gradmix+": "+ gradmix+",
}
CONTROLS = {"class-balanced": "balanced control of", "shuffle": "shuffled control of"}
"""The gradient-free controls of a mix by their partners."""

SCALES = ("full", "small")
SMALL_EPOCHS = 12
SMALL_MODELS = {
    "mlp": "mlp-small",
    "resnet18": "resnet18-tiny",
    "resnet18-imagenet": "resnet18-tiny",
    "vit": "vit-small",
}
"""The networks of `scale="small"`, which fit one core."""


@dataclass(frozen=True)
class Line:
    """A row of a table or a curve of a figure: the settings of its runs and the paper's row.

    The settings are those of `config_for`, with two additions from the paper's tables: the mix
    `randaugment`, and `partners` that replace the partners of GradMix.
    """

    label: str
    settings: Mapping[str, Any]
    paper: Setting | None = None
    varied: str = ""  # the settings in the label besides method and mix


def line_for(settings: Mapping[str, Any], paper: Setting | None = None) -> Line:
    """Return a line whose label has the method, the mix or control, and the other settings.

    >>> line_for({"method": "mir", "mix": "gradmix+", "partners": "shuffle", "epochs": 5}).label
    'MIR + shuffled control of gradmix+, epochs 5'
    """
    mix, partners = settings["mix"], settings.get("partners")
    what = LABELS.get(mix, f"+ {mix}")
    if partners:
        what = f"+ {CONTROLS[partners]} {'GradMix' if mix == 'gradmix' else mix}"
    label = f"{display(settings['method'])} {what}".strip()
    others = (name for name in settings if name not in ("method", "mix", "partners"))
    varied = ", ".join(format_setting(name, settings[name]) for name in others)
    return Line(f"{label}, {varied}" if varied else label, settings, paper, varied)


def with_controls(
    settings: Mapping[str, Any], paper: Setting | None = None, others: Sequence[Setting] = ()
) -> list[Line]:
    """Return a line, followed by the gradient-free controls of its mix.

    Args:
        settings: The settings of the line.
        paper: The paper's row.
        others: The other rows of the table. If they have Mixup, it is the shuffled control of
            gradmix.
    """
    controls = list(CONTROLS) if uses_gradients(settings) else []
    if settings["mix"] == "gradmix" and {**settings, "mix": "mixup"} in others:
        controls.remove("shuffle")
    lines = (line_for({**settings, "partners": partners}) for partners in controls)
    return [line_for(settings, paper), *lines]


def configs_of(line: Line, data: str, seeds: Sequence[int], scale: str = "full") -> list[RunConfig]:
    """Return the configuration of a line for every seed.

    Raises:
        UnknownNameError: `scale` is neither `full` nor `small`.
    """
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)
    settings = dict(line.settings)
    usual = config_for(data, mix="gradmix+")
    if settings["mix"] == "randaugment":
        settings |= {"mix": "none", "transforms": (*usual.transforms, "randaugment")}
    partners = settings.pop("partners", "gradient")
    if partners == "gradient-keep-original":
        # Everything but the partners is as in gradmix+.
        assert usual.recipe is not None
        settings |= {"mix": f"{partners}:linear:remix", **usual.recipe.own_settings}
    recipe = config_for(data, mix=settings["mix"]).recipe
    if recipe is not None and settings.get("alpha") == recipe.alpha:
        del settings["alpha"]  # the default gives the same run
    if scale == "small":
        model = settings.get("model", usual.model)
        settings |= {"model": SMALL_MODELS.get(model, model), "lr_steps": ()}
        settings["epochs"] = min(usual.epochs, SMALL_EPOCHS)
    configs = [config_for(data, seed=seed, **settings) for seed in seeds]
    if partners in CONTROL_PARTNERS:
        place = CONTROL_PARTNERS.index(partners)
        return [controls_of(config)[place] for config in configs]
    return configs
