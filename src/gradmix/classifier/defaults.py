"""Check a classifier's parameters, and choose what the caller left open from the data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gradmix._setting_types import Settings
from gradmix.classifier.features import (
    Features,
    default_backbone,
    features_of,
)
from gradmix.classifier.inputs import Layout, reading
from gradmix.criterion import find_head
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import Method, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import parse_recipe
from gradmix.models import MODELS
from gradmix.models.pretrained import PRETRAINED, is_pretrained
from gradmix.settings import (
    CriterionSettings,
    MixSettings,
    TrainingSettings,
    check,
    check_classifier,
)
from gradmix.training.build import Design

FIXED = (
    *("method", "model", "head_size", "exemplars_per_class", "memory_total"),
    *("holdout_per_class", "keep_images", "image_size", "mean", "std", "weights", "finetune"),
)
"""Parameters that cannot change between calls of partial_fit."""

EPOCHS, STEPS, MOST_EPOCHS = 20, 1000, 200
"""Default number of epochs: EPOCHS, or more up to MOST_EPOCHS until there are STEPS steps."""
FINE_TUNE_EPOCHS = 5
"""Default number of epochs with layers of a pretrained backbone: an epoch takes long on a CPU."""
SMALL_TAU, MANY_STEPS = 0.5, 2000
"""With fewer steps, gradmix+ uses this τ; see docs/classifier.md."""
SMALL_GREY, SMALL = 32, 16
"""Largest side in pixels of grey images, and of any images, for which an MLP is chosen."""
USUAL: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0, "schedule": "steps"}
CONVOLUTIONAL: dict[str, Any] = {"lr": 0.05, "weight_decay": 5e-4, "schedule": "cosine"}
"""Defaults of CNNs and ResNets trained from scratch; docs/photos.md has the measurements."""
HELD_OUT = 10
"""Photos held out per class with a backbone: for two classes, enough for 5% false alarms."""

# --- checks ---------------------------------------------------------------------------------


def checked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as files store them, checked: plain numbers, lists and dicts."""
    with reading("a parameter"):
        plain = {name: _plain(value) for name, value in params.items()}
        check_params(plain)
    return plain


def _plain(value: Any) -> Any:
    """Return a parameter without NumPy and PyTorch types; networks stay."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def check_params(params: Mapping[str, Any]) -> None:
    """Check every parameter by itself and together with the others.

    Raises:
        InputError: If a parameter is invalid; the message names it.
    """
    transforms = () if params["transforms"] is None else params["transforms"]
    check_classifier({**params, "transforms": transforms})
    _check_model(params)
    for name in _transforms(params["transforms"], photos=False):
        if name not in TRANSFORMS:
            raise UnknownNameError("transform", name, TRANSFORMS)
    frozen = _names_backbone(params) and params["finetune"] in (None, "none")
    kind = find_method(choose_method(params["method"], "linear" if frozen else params["model"]))
    if is_fine_tuned(params) and not kind.trains:
        raise InputError(
            f"finetune is {params['finetune']!r}, and {params['method']} trains no layers; omit one"
        )
    mix = choose_mix(params["mix"], kind.replays, images=False)
    kind.check_mix(parse_recipe(**{**_shared(MixSettings, params), "mix": mix}))
    if params["head_size"] is not None and kind.grows:
        raise InputError(
            f"head_size is {params['head_size']}; give None: the head of {params['method']} grows"
        )
    kind.check_selection(params["exemplar_selection"])
    read_options(kind.options_type, dict(params["options"] or {}))
    _check_memory(params, kind if params["method"] != "auto" or frozen else None)


def _names_backbone(params: Mapping[str, Any]) -> bool:
    """Whether `model` is a backbone: the name of one, or a module that is to be fine-tuned."""
    model = params["model"]
    own = isinstance(model, nn.Module) and params["finetune"] is not None
    return own or is_pretrained(model)


def _check_model(params: Mapping[str, Any]) -> None:
    model = params["model"]
    if params["finetune"] is not None and not _names_backbone(params):
        raise InputError(
            f"finetune is {params['finetune']!r}, which is for pretrained backbones, and model is "
            f"{str(model)[:40]!r}; give the backbone as model="
        )
    if params["weights"] is not None and not (_names_backbone(params) or model in MODELS):
        raise InputError(
            f"weights is {params['weights']!r}, and model is {str(model)[:40]!r}; name the network "
            "that has these weights, or give a module and finetune="
        )
    if isinstance(model, nn.Module):
        if params["finetune"] is None:
            find_head(model)
    elif not isinstance(model, str):
        raise InputError(f"model is {str(model)[:80]!r}; give a name, 'auto' or a torch.nn.Module")
    elif model not in MODELS and model != "auto" and not is_pretrained(model):
        raise UnknownNameError("model", model, [*MODELS, *PRETRAINED, "timm/NAME", "auto"])


def _check_memory(params: Mapping[str, Any], kind: type[Method] | None) -> None:
    """Check the size of the memory; `kind` is the method, None if the data decide about it."""
    each, total, held = (
        params[name] for name in ("exemplars_per_class", "memory_total", "holdout_per_class")
    )
    if total is None and each is None:
        raise InputError("exemplars_per_class and memory_total are None; give one of them")
    if kind is not None and total is None:
        kind.check_memory(each)
    least = 1 if kind is not None and kind.replays else 0  # exemplars for replay
    if total is None and each and held is not None and held > each - least:
        raise InputError(
            f"holdout_per_class is {held} of {each} exemplars_per_class; leave at least one for "
            "replay"
        )
    if total is None and not each and held:
        raise InputError(
            f"holdout_per_class is {held} and exemplars_per_class is 0; held-out samples are "
            "stored, too: set one of them to another number"
        )


def choose_holdout(params: Mapping[str, Any], features: Features | None) -> int:
    """Return the samples per class that are only used for measuring."""
    given, each = params["holdout_per_class"], params["exemplars_per_class"]
    if given is not None:
        return int(given)
    photos = features is not None and params["memory_total"] is None
    return min(HELD_OUT, each // 3) if photos else 0


def budget(params: Mapping[str, Any], classes: int) -> tuple[int | None, int | None]:
    """Return the exemplars for replay, per class or in total, when so many classes are known."""
    each, total, held = (
        params[name] for name in ("exemplars_per_class", "memory_total", "holdout_per_class")
    )
    held = held or 0  # None: not chosen yet
    if total is None:
        return each - held, None
    left = total - held * classes
    if left < classes:
        raise InputError(
            f"memory_total is {total}; {classes} classes need at least {classes * (held + 1)}: "
            f"{held} of each class for measuring and one for replay"
        )
    return None, left


def _transforms(given: Any, photos: bool) -> tuple[str, ...]:
    if isinstance(given, str) and given == "auto":
        return ("crop", "flip") if photos else ()
    names: tuple[str, ...] = () if given is None else check("transforms", given)
    return names


# --- choices --------------------------------------------------------------------------------


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
    if not _names_backbone(params):
        return None
    if isinstance(model, str) and (mean is not None or std is not None):
        raise InputError(
            f"mean is {mean} and std is {std}; omit them: {model} has its own normalisation"
        )
    return features_of(model, params["image_size"], params["weights"], mean, std)


def is_fine_tuned(params: Mapping[str, Any]) -> bool:
    """Whether layers of a pretrained backbone are trained."""
    return params["finetune"] in ("last", "all")


def _is_small(layout: Layout) -> bool:
    """Whether images are small enough for an MLP."""
    channels, *sides = layout.shape
    return (max(sides) <= SMALL_GREY and channels == 1) or min(sides) < SMALL


def choose_method(given: str, model: str | nn.Module) -> str:
    """Return the method; on frozen features the default is ridge regression."""
    if given != "auto":
        return given
    return "ridge" if isinstance(model, str) and model == "linear" else "er"


def choose_mix(given: str, replays: bool, *, images: bool) -> str:
    """Return the mix; gradient partners need a memory, and lose to remix in image networks."""
    if given != "auto":
        return given
    return "none" if not replays else "remix" if images else "gradmix+"


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
    _check_memory(params, kind)
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
        recipe=parse_recipe(**{**_shared(MixSettings, params), "mix": mix, "tau": tau}),
        settings=_training_settings(params, epochs, CONVOLUTIONAL if from_scratch else USUAL),
        options=tuple(dict(params["options"] or {}).items()),
        exemplars_per_class=each,
        memory_total=total,
        criterion=CriterionSettings(**_shared(CriterionSettings, params)),
        selection=params["exemplar_selection"],
    )
    return CallPlan(design, _transforms_for(params, layout, images))


def _transforms_for(params: Mapping[str, Any], layout: Layout, images: bool) -> tuple[str, ...]:
    usual = layout.images and layout.shape[0] in (1, 3)
    transforms = _transforms(params["transforms"], images and usual)
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
    given = _shared(TrainingSettings, params)
    chosen = {name: value for name, value in usual.items() if given[name] is None}
    if given["lr_steps"] and given["schedule"] is None:
        chosen["schedule"] = "steps"
    return TrainingSettings(**{**given, **chosen, "epochs": epochs, "head": head})


def _shared(group: type[Settings], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that are parameters of the classifier, too."""
    return {name: params[name] for name in group.model_fields if name in params}
