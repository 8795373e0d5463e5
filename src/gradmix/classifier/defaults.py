"""Choose what the caller left open from the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradmix.classifier.features import (
    Features,
    default_backbone,
    features_of,
)
from gradmix.classifier.inputs import Layout
from gradmix.classifier.params import (
    budget,
    check_memory,
    choose_method,
    choose_mix,
    is_fine_tuned,
    named_transforms,
    names_backbone,
    shared,
)
from gradmix.errors import InputError
from gradmix.methods import find_method
from gradmix.mixing import parse_recipe
from gradmix.settings import (
    CriterionSettings,
    MixSettings,
    TrainingSettings,
)
from gradmix.training.build import Design

EPOCHS, STEPS, MOST_EPOCHS = 20, 1000, 200
"""Default number of epochs: EPOCHS, or more up to MOST_EPOCHS until there are STEPS steps."""
FINE_TUNE_EPOCHS = 5
"""Default number of epochs with layers of a pretrained backbone: an epoch takes long on a CPU."""
SMALL_TAU, MANY_STEPS = 0.5, 2000
"""The τ of gradmix+ below this number of steps; see docs/classifier.md."""
SMALL_GREY, SMALL = 32, 16
"""Largest side in pixels of grey images, and of any images, for which an MLP is chosen."""
USUAL: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0, "schedule": "steps"}
CONVOLUTIONAL: dict[str, Any] = {"lr": 0.05, "weight_decay": 5e-4, "schedule": "cosine"}
"""Defaults of CNNs and ResNets trained from scratch; docs/photos.md has the measurements."""
HELD_OUT = 10
"""Photos held out per class with a backbone: for two classes, enough for 5% false alarms."""


def choose_holdout(params: Mapping[str, Any], features: Features | None) -> int:
    """Return the samples per class that are only used for measuring."""
    given, each = params["holdout_per_class"], params["exemplars_per_class"]
    if given is not None:
        return int(given)
    photos = features is not None and params["memory_total"] is None
    return min(HELD_OUT, each // 3) if photos else 0


@dataclass(frozen=True)
class CallPlan:
    """What one call trains: every open parameter is chosen."""

    design: Design
    transforms: tuple[str, ...]


def choose_model(given: str | nn.Module, layout: Layout, device: torch.device) -> str | nn.Module:
    """Return the network: an MLP for rows and small images, otherwise a convolutional one."""
    if not (isinstance(given, str) and given == "auto"):
        return given
    if not layout.images or _is_small(layout):
        return "mlp"
    return "cnn" if device.type == "cpu" else "resnet18"


def choose_features(params: Mapping[str, Any], layout: Layout | None) -> Features | None:
    """Return the backbone of the first call: the named one, or the default for photos.

    Args:
        params: The classifier's parameters.
        layout: The form of the samples; None for photos in files, which are read after this.

    Raises:
        MissingPackageError: If the weights of a named backbone are not installed.
    """
    name = params["model"]
    if isinstance(name, str) and name == "auto":
        small = layout is not None and (not layout.images or _is_small(layout))
        name = None if small else default_backbone()
    return pretrained({**params, "model": name})


def pretrained(params: Mapping[str, Any]) -> Features | None:
    """Return the backbone that `model` names or is; None if it is a network."""
    model, mean, std = params["model"], params["mean"], params["std"]
    if not names_backbone(params):
        return None
    if isinstance(model, str) and (mean is not None or std is not None):
        raise InputError(
            f"mean is {mean} and std is {std}; omit them: {model} has its own normalisation"
        )
    return features_of(model, params["image_size"], params["weights"], mean, std)


def _is_small(layout: Layout) -> bool:
    """Whether images are small enough for an MLP."""
    channels, *sides = layout.shape
    return (max(sides) <= SMALL_GREY and channels == 1) or min(sides) < SMALL


def plan_call(
    params: Mapping[str, Any],
    model: str | nn.Module,
    layout: Layout,
    samples: int,
    classes: int,
) -> CallPlan:
    """Return what a call trains.

    Args:
        params: The classifier's parameters.
        model: The network, chosen by `choose_model`.
        layout: The form of the samples.
        samples: The number of samples of the call.
        classes: The number of classes known after the call.
    """
    tuned = is_fine_tuned(params)
    steps = max(1, samples // params["batch_size"])
    epochs = params["epochs"]
    if epochs is None and tuned:
        epochs = FINE_TUNE_EPOCHS
    elif epochs is None:
        epochs = min(max(EPOCHS, math.ceil(STEPS / steps)), MOST_EPOCHS)
    images = tuned or (isinstance(model, str) and model.startswith(("cnn", "resnet", "vit")))
    method = choose_method(params["method"], model)
    kind = find_method(method)
    check_memory(params, kind)
    if layout.images and kind.replays and not params["keep_images"]:
        raise InputError(
            f"keep_images is False, and {method} replays images; use a pretrained backbone, whose "
            "embeddings it can replay, or omit keep_images"
        )
    if params["early_stopping"] and not kind.trains:
        raise InputError(f"early_stopping is True, but {method} has no epochs; omit it")
    mix = choose_mix(params["mix"], kind.replays, images=images)
    small_tau = SMALL_TAU if mix == "gradmix+" and epochs * steps < MANY_STEPS else None
    tau = small_tau if params["tau"] is None else params["tau"]
    from_scratch = images and not tuned and not str(model).startswith("vit")
    each, total = budget(params, classes)
    design = Design(
        method=method,
        recipe=parse_recipe(**{**shared(MixSettings, params), "mix": mix, "tau": tau}),
        settings=_training_settings(params, epochs, CONVOLUTIONAL if from_scratch else USUAL),
        options=tuple(dict(params["options"] or {}).items()),
        exemplars_per_class=each,
        memory_total=total,
        criterion=CriterionSettings(**shared(CriterionSettings, params)),
        selection=params["exemplar_selection"],
    )
    return CallPlan(design, _transforms_for(params, layout, images))


def _transforms_for(params: Mapping[str, Any], layout: Layout, images: bool) -> tuple[str, ...]:
    usual = layout.images and layout.shape[0] in (1, 3)
    transforms = named_transforms(params["transforms"], images and usual)
    if transforms and not usual:
        raise InputError(
            f"transforms is {list(transforms)}; transforms need images with 1 or 3 channels, and "
            f"these samples have shape {layout.shape}"
        )
    return transforms


def _training_settings(
    params: Mapping[str, Any], epochs: int, usual: Mapping[str, Any]
) -> TrainingSettings:
    """Return the settings of a call; `usual` has the values of parameters that are None."""
    head = "growing" if params["head_size"] is None else "fixed"
    given = shared(TrainingSettings, params)
    chosen = {name: value for name, value in usual.items() if given[name] is None}
    if given["lr_steps"] and given["schedule"] is None:
        chosen["schedule"] = "steps"
    return TrainingSettings(**{**given, **chosen, "epochs": epochs, "head": head})
