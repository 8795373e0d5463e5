"""The classifier's parameters: checks, and the choice of what the caller left open."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gradmix._setting_types import Settings
from gradmix.classifier.inputs import Layout, reading
from gradmix.classifier.photos import default_backbone, published_backbone
from gradmix.criterion import find_head
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import Method, find_method
from gradmix.methods.parts import read_options
from gradmix.mixing import parse_recipe
from gradmix.models import MODELS
from gradmix.models.pretrained import PRETRAINED, Backbone, is_pretrained, load_pretrained
from gradmix.settings import (
    MixSettings,
    check,
    check_classifier,
)

SMALL_GREY, SMALL = 32, 16
"""Largest side in pixels of grey images, and of any images, for which an MLP is chosen."""
HELD_OUT = 10
"""Photos held out per class with a backbone: for two classes, enough for 5% false alarms."""

Params = Mapping[str, Any]

# --- checks ---------------------------------------------------------------------------------


def checked_params(params: Params) -> dict[str, Any]:
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


def check_params(params: Params) -> None:
    """Check every parameter by itself and with the others; the InputError names the invalid one."""
    transforms = () if params["transforms"] is None else params["transforms"]
    check_classifier({**params, "transforms": transforms})
    _check_model(params)
    for name in named_transforms(params["transforms"], photos=False):
        if name not in TRANSFORMS:
            raise UnknownNameError("transform", name, TRANSFORMS)
    frozen = names_backbone(params) and not is_fine_tuned(params)
    kind = find_method(choose_method(params["method"], "linear" if frozen else params["model"]))
    if is_fine_tuned(params) and not kind.trains:
        raise InputError(
            f"finetune is {params['finetune']!r}, and {params['method']} trains no layers; omit one"
        )
    mix = choose_mix(params["mix"], kind.replays, images=False)
    kind.check_mix(parse_recipe(**{**given_settings(MixSettings, params), "mix": mix}))
    if params["head_size"] is not None and kind.grows:
        raise InputError(
            f"head_size is {params['head_size']}; give None: the head of {params['method']} grows"
        )
    kind.check_selection(params["exemplar_selection"])
    kind.check_adjustment(params["logit_adjustment"])
    read_options(kind.options_type, dict(params["options"] or {}))
    check_memory(params, kind if params["method"] != "auto" or frozen else None)


def _check_model(params: Params) -> None:
    model, shown = params["model"], repr(str(params["model"])[:40])
    if params["finetune"] is not None and not names_backbone(params):
        raise InputError(
            f"finetune is {params['finetune']!r}, which is for pretrained backbones, and model is "
            f"{shown}; give the backbone as model="
        )
    if params["weights"] is not None and not (names_backbone(params) or model in MODELS):
        raise InputError(
            f"weights is {params['weights']!r}, and model is {shown}; name the network that has "
            "these weights, or give a module and finetune="
        )
    if isinstance(model, nn.Module):
        if params["finetune"] is None:
            find_head(model)
    elif not isinstance(model, str):
        raise InputError(f"model is {str(model)[:80]!r}; give a name, 'auto' or a torch.nn.Module")
    elif model not in MODELS and model != "auto" and not is_pretrained(model):
        raise UnknownNameError("network", model, [*MODELS, *PRETRAINED, "timm/NAME", "auto"])


def _memory_params(params: Params) -> tuple[int | None, int | None, int | None]:
    each, total = params["exemplars_per_class"], params["memory_total"]
    return each, total, params["holdout_per_class"]


def check_memory(params: Params, kind: type[Method] | None) -> None:
    """Check the size of the memory; `kind` is the method, None if the data decide about it."""
    each, total, held = _memory_params(params)
    if total is not None:
        return
    if each is None:
        raise InputError("exemplars_per_class and memory_total are None; give one of them")
    if kind is not None:
        kind.check_memory(each)
    least = 1 if kind is not None and kind.replays else 0  # exemplars for replay
    if each and held is not None and held > each - least:
        raise InputError(
            f"holdout_per_class is {held} of {each} exemplars_per_class; leave at least one for "
            "replay"
        )
    if not each and held:
        raise InputError(
            f"holdout_per_class is {held} and exemplars_per_class is 0; held-out samples are "
            "stored, too: set one of them to another number"
        )


def budget(params: Params, classes: int) -> tuple[int | None, int | None]:
    """Return the exemplars for replay: a number per class, or a total for `classes` known ones."""
    each, total, held = _memory_params(params)
    held = held or 0  # None: not chosen yet
    if total is None:
        assert each is not None
        return each - held, None
    left = total - held * classes
    if left < classes:
        raise InputError(
            f"memory_total is {total}; {classes} classes need at least {classes * (held + 1)}: "
            f"{held} of each class for measuring and one for replay"
        )
    return None, left


def given_settings(group: type[Settings], params: Params) -> dict[str, Any]:
    """Return the settings of a group that the classifier has as parameters and that are set."""
    names = (name for name in group.model_fields if name in params)
    return {name: params[name] for name in names if params[name] is not None}


# --- choices --------------------------------------------------------------------------------


def is_fine_tuned(params: Params) -> bool:
    """Whether layers of a pretrained backbone are trained."""
    return params["finetune"] in ("last", "all")


def names_backbone(params: Params) -> bool:
    """Whether `model` is a backbone: the name of one, or a module that is to be fine-tuned."""
    model = params["model"]
    if isinstance(model, nn.Module):
        return params["finetune"] is not None
    return model != "auto" and is_pretrained(model)


def choose_backbone(params: Params, layout: Layout | None) -> Backbone | None:
    """Return the backbone of the first call: the named one, or the default for photos.

    The layout of photos in files is None: they are read after this. MissingPackageError if the
    weights of a named backbone are not installed.
    """
    if params["model"] != "auto":
        return find_backbone(params)
    small = layout is not None and (not layout.images or _is_small(layout))
    name = None if small else default_backbone()
    return None if name is None else find_backbone({**params, "model": name})


def find_backbone(params: Params) -> Backbone | None:
    """Return the backbone that `model` names, or a copy of the one that it is; None for networks.

    Raises:
        InputError: If the weights do not fit, or a module cannot embed photos.
    """
    model, weights, size = params["model"], params["weights"], params["image_size"]
    own = {name: params[name] for name in ("mean", "std") if params[name] is not None}
    if not names_backbone(params):
        return None
    if isinstance(model, str) and own:
        raise InputError(
            f"mean is {params['mean']} and std is {params['std']}; omit them: {model} has its own "
            "normalisation"
        )
    if isinstance(model, str) and weights is None:
        return published_backbone(model, size)
    with reading("model or weights"):
        loaded = load_pretrained(copy.deepcopy(model), weights=weights, input_size=size)
    changed = {name: tuple(value / 255 for value in values) for name, values in own.items()}
    return replace(loaded, **changed)  # type: ignore[arg-type]


def choose_model(given: str | nn.Module, layout: Layout, device: torch.device) -> str | nn.Module:
    """Return the network: an MLP for rows and small images, otherwise a convolutional one."""
    if given != "auto":
        return given
    if not layout.images or _is_small(layout):
        return "mlp"
    return "cnn" if device.type == "cpu" else "resnet18"


def _is_small(layout: Layout) -> bool:
    """Whether images are small enough for an MLP."""
    channels, *sides = layout.shape
    return (max(sides) <= SMALL_GREY and channels == 1) or min(sides) < SMALL


def choose_method(given: str, model: str | nn.Module) -> str:
    """Return the method; on frozen features the default is ridge regression."""
    if given != "auto":
        return given
    return "ridge" if model == "linear" else "er"


def choose_mix(given: str, replays: bool, *, images: bool) -> str:
    """Return the mix: none without a memory, and remix in image networks, where it is best."""
    if given != "auto":
        return given
    return "none" if not replays else "remix" if images else "balanced-remix"


def choose_holdout(params: Params, backbone: Backbone | None) -> int:
    """Return the samples per class that are only used for measuring."""
    each, total, given = _memory_params(params)
    if given is not None:
        return int(given)
    if backbone is None or total is not None or each is None:
        return 0
    return min(HELD_OUT, each // 3)


def named_transforms(given: Any, photos: bool) -> tuple[str, ...]:
    """Return the names of transforms; "auto" means crops and flips for photos."""
    if given == "auto":
        return ("crop", "flip") if photos else ()
    names: tuple[str, ...] = () if given is None else check("transforms", given)
    return names


def photo_layout(backbone: Backbone) -> Layout:
    """Return the form of the photos that a backbone takes."""
    return Layout((3, backbone.input_size, backbone.input_size))
