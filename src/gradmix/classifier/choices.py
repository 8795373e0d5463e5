"""From a classifier's parameters and the data to what is trained; what is not given is chosen."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from gradmix.classifier.inputs import Layout
from gradmix.criterion import PAIRINGS, find_head
from gradmix.criterion.selector import Judging
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import Settings, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import parse_recipe
from gradmix.models import MODELS, adapt, build_model
from gradmix.training.build import Design

FIXED = (
    *("method", "model", "head_size", "exemplars_per_class", "memory_total"),
    *("holdout_per_class", "image_size", "mean", "std"),
)
"""Parameters that cannot change between calls of partial_fit."""

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
EPOCHS, STEPS, MOST_EPOCHS = 20, 1000, 200
"""Without `epochs`: that many passes, or more until there are as many steps, within a limit."""
SMALL_TAU, MLP_STEPS, RESNET_STEPS = 0.5, 2000, 3000
"""With fewer steps than these, gradmix+ takes this τ, and ResNets remix; see docs/classifier.md."""
SMALL_GREY, SMALL = 32, 16  # pixels a side up to which an MLP looks at grey, and at any images
PHOTO_LR, OTHER_LR = 0.05, 0.01

_LEAST = {
    "exemplars_per_class": 1,
    "memory_total": 1,
    "holdout_per_class": 0,
    "head_size": 1,
    "epochs": 1,
    "batch_size": 1,
    "replay_batch_size": 1,
    "tables": 1,
    "criterion_exemplars": 1,
    "image_size": 8,
    "patience": 1,
    "threads": 1,
}
_MOST = {"threads": 1024, "head_size": 10**7, "image_size": 4096}
_ABSURD = 2**31
LARGEST = 1e30
_OPTIONAL = (
    *("exemplars_per_class", "memory_total", "head_size", "epochs", "tables", "image_size"),
    *("threads", "lr", "alpha", "tau"),
)
_NUMBERS = ("lr", "momentum", "weight_decay", "alpha", "tau", "validation_fraction")


def check_params(params: Mapping[str, Any]) -> None:
    """InputError unless every parameter makes sense by itself and with the others."""
    for name, least in _LEAST.items():
        _check_number(name, params[name], numbers.Integral, "an integer")
        if params[name] is not None and params[name] < least:
            raise InputError(f"{name} is {params[name]}; give {least} or more")
        most = _MOST.get(name, _ABSURD)
        if params[name] is not None and params[name] > most:
            raise InputError(f"{name} is {params[name]}; give {most} or less")
    for name in _NUMBERS:
        _check_number(name, params[name], numbers.Real, "a number")
    for name, known in (
        ("pairing", PAIRINGS),
        ("average", ("sample", "class")),
        ("precision", PRECISIONS),
    ):
        if params[name] not in known:
            raise UnknownNameError(name, params[name], known)
    if not isinstance(params["early_stopping"], bool):
        raise InputError(f"early_stopping is {params['early_stopping']!r}; give True or False")
    if not 0 < params["validation_fraction"] <= 0.5:
        raise InputError(
            f"validation_fraction is {params['validation_fraction']}; "
            "it must be above 0 and at most 0.5"
        )
    _check_model(params["model"])
    for name in _transforms(params["transforms"], photos=False):
        if name not in TRANSFORMS:
            raise UnknownNameError("transform", name, TRANSFORMS)
    for name in ("method", "mix", "device"):
        if not isinstance(params[name], str):
            raise InputError(f"{name} is {params[name]!r}; give a name")
    kind = find_method(params["method"])
    mix = choose_mix(params["mix"], kind.replays, large=True)
    recipe = parse_recipe(mix, params["alpha"], params["tables"], params["tau"])
    kind.check_mix(recipe)
    if params["head_size"] is not None and kind.grows:
        raise InputError(f"head_size is {params['head_size']}; with {params['method']} heads grow")
    read_options(kind.options_type, _options(params["options"]))
    settings_of(params, epochs=params["epochs"] or 1, lr=params["lr"] or OTHER_LR)
    _check_memory(params)


def _check_number(name: str, value: Any, kind: type, wanted: str) -> None:
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, kind):
        none = " or None" if name in _OPTIONAL else ""
        raise InputError(f"{name} is {value!r}; it must be {wanted}{none}")
    if not abs(value) <= LARGEST:  # type: ignore[arg-type]
        raise InputError(f"{name} is {str(value)[:40]}; it must be finite, {LARGEST:g} at most")


def _check_model(model: Any) -> None:
    if isinstance(model, nn.Module):
        find_head(model)
    elif not isinstance(model, str):
        raise InputError(f"model is {model!r}; give a name, 'auto' or a torch.nn.Module")
    elif model not in MODELS and model != "auto":
        raise UnknownNameError("model", model, [*MODELS, "auto"])


def _check_memory(params: Mapping[str, Any]) -> None:
    each, total, held = (
        params[name] for name in ("exemplars_per_class", "memory_total", "holdout_per_class")
    )
    if total is None and each is None:
        raise InputError("exemplars_per_class and memory_total are None; give one of them")
    if total is None and held >= each:
        raise InputError(
            f"holdout_per_class is {held}, of the {each} that exemplars_per_class allows; leave at "
            "least one to be replayed"
        )


def budget(params: Mapping[str, Any], classes: int) -> tuple[int | None, int | None]:
    """Exemplars per class or in all that may be replayed when so many classes are known."""
    each, total, held = (
        params[name] for name in ("exemplars_per_class", "memory_total", "holdout_per_class")
    )
    if total is None:
        return each - held, None
    left = total - held * classes
    if left < classes:
        raise InputError(
            f"memory_total is {total}; {classes} classes need at least {classes * (held + 1)}, "
            f"{held} of each held out and one replayed"
        )
    return None, left


def _options(given: Any) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"options is {given!r}; give a dict of the method's own settings")
    return dict(given)


def _transforms(given: Any, photos: bool) -> tuple[str, ...]:
    if isinstance(given, str) and given == "auto":
        return ("crop", "flip") if photos else ()
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"transforms is {given!r}; give a list of names, 'auto' or None")
    for name in given:
        if not isinstance(name, str):
            raise InputError(f"transforms has {name!r}; give a list of names")
    return tuple(given)


def settings_of(params: Mapping[str, Any], *, epochs: int, lr: float) -> Settings:
    """How a call trains."""
    steps = params["lr_steps"]
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise InputError(f"lr_steps is {steps!r}; give a list of epochs")
    for step in steps:
        _check_number("lr_steps", step, numbers.Integral, "a list of integers")
    return Settings(
        epochs=int(epochs),
        lr=float(lr),
        momentum=float(params["momentum"]),
        weight_decay=float(params["weight_decay"]),
        lr_steps=tuple(map(int, steps)),
        batch_size=int(params["batch_size"]),
        replay_batch_size=int(params["replay_batch_size"]),
        head="growing" if params["head_size"] is None else "fixed",
    )


@dataclass(frozen=True)
class Choices:
    """What a call trains."""

    design: Design
    model: str | nn.Module  # a name, or one that was given
    transforms: tuple[str, ...]

    def network(self, layout: Layout, outputs: int) -> nn.Module:
        """A new network for such samples."""
        if isinstance(self.model, str):
            return build_model(self.model, layout.shape, outputs)
        network: Any = adapt(copy.deepcopy(self.model))
        head = network.head
        if head.out_features != outputs:
            network.head = nn.Linear(head.in_features, outputs, head.bias is not None)
        return cast(nn.Module, network)


def choose_model(given: str | nn.Module, layout: Layout, device: torch.device) -> str | nn.Module:
    """The network for such samples: an MLP for rows and small images, else a ResNet-18."""
    if not (isinstance(given, str) and given == "auto"):
        return given
    if not layout.images:
        return "mlp"
    channels, *sides = layout.shape
    if (max(sides) <= SMALL_GREY and channels == 1) or min(sides) < SMALL:
        return "mlp"
    return "resnet18-tiny" if device.type == "cpu" else "resnet18"


def choose_mix(given: str, replays: bool, *, large: bool) -> str:
    """The mix by name; gradient partners need a memory and, on photos, many steps."""
    if given != "auto":
        return given
    return "none" if not replays else "gradmix+" if large else "remix"


def choose(
    params: Mapping[str, Any],
    model: str | nn.Module,
    layout: Layout,
    samples: int,
    classes: int,
) -> Choices:
    """All that a call with so many samples needs, when so many classes are then known."""
    steps = max(1, samples // params["batch_size"])
    epochs = params["epochs"]
    if epochs is None:
        epochs = min(max(EPOCHS, math.ceil(STEPS / steps)), MOST_EPOCHS)
    photos = isinstance(model, str) and model.startswith("resnet")
    lr = params["lr"] if params["lr"] is not None else PHOTO_LR if photos else OTHER_LR
    large = epochs * steps >= (RESNET_STEPS if photos else MLP_STEPS)
    replays = find_method(params["method"]).replays
    mix = choose_mix(params["mix"], replays, large=large or not photos)
    small_tau = SMALL_TAU if mix == "gradmix+" and not large else None
    tau = small_tau if params["tau"] is None else params["tau"]
    each, total = budget(params, classes)
    design = Design(
        method=params["method"],
        recipe=parse_recipe(mix, params["alpha"], params["tables"], tau),
        settings=settings_of(params, epochs=epochs, lr=lr),
        options=tuple(_options(params["options"]).items()),
        exemplars_per_class=each,
        memory_total=total,
        judging=Judging(
            exemplars_per_class=int(params["criterion_exemplars"]),
            pairing=params["pairing"],
            average=params["average"],
        ),
    )
    usual = layout.images and layout.shape[0] in (1, 3)
    transforms = _transforms(params["transforms"], photos and usual)
    if transforms and not usual:
        raise InputError(
            f"transforms is {list(transforms)}, which are for images with 1 or 3 channels; these "
            f"samples are of {layout.shape}"
        )
    return Choices(design, model, transforms)
