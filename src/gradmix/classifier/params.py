"""Check a classifier's parameters, by themselves and together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from gradmix._setting_types import Settings
from gradmix.classifier.inputs import reading
from gradmix.criterion import find_head
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import Method, find_method
from gradmix.methods.base import read_options
from gradmix.mixing import parse_recipe
from gradmix.models import MODELS
from gradmix.models.pretrained import PRETRAINED, is_pretrained
from gradmix.settings import MixSettings, check, check_classifier

FIXED = (
    *("method", "model", "head_size", "exemplars_per_class", "memory_total"),
    *("holdout_per_class", "keep_images", "image_size", "mean", "std", "weights", "finetune"),
)
"""Parameters that cannot change between calls of partial_fit."""


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
    for name in named_transforms(params["transforms"], photos=False):
        if name not in TRANSFORMS:
            raise UnknownNameError("transform", name, TRANSFORMS)
    frozen = names_backbone(params) and params["finetune"] in (None, "none")
    kind = find_method(choose_method(params["method"], "linear" if frozen else params["model"]))
    if is_fine_tuned(params) and not kind.trains:
        raise InputError(
            f"finetune is {params['finetune']!r}, and {params['method']} trains no layers; omit one"
        )
    mix = choose_mix(params["mix"], kind.replays, images=False)
    kind.check_mix(parse_recipe(**{**shared(MixSettings, params), "mix": mix}))
    if params["head_size"] is not None and kind.grows:
        raise InputError(
            f"head_size is {params['head_size']}; give None: the head of {params['method']} grows"
        )
    kind.check_selection(params["exemplar_selection"])
    read_options(kind.options_type, dict(params["options"] or {}))
    check_memory(params, kind if params["method"] != "auto" or frozen else None)


def names_backbone(params: Mapping[str, Any]) -> bool:
    """Whether `model` is a backbone: the name of one, or a module that is to be fine-tuned."""
    model = params["model"]
    own = isinstance(model, nn.Module) and params["finetune"] is not None
    return own or is_pretrained(model)


def _check_model(params: Mapping[str, Any]) -> None:
    model = params["model"]
    if params["finetune"] is not None and not names_backbone(params):
        raise InputError(
            f"finetune is {params['finetune']!r}, which is for pretrained backbones, and model is "
            f"{str(model)[:40]!r}; give the backbone as model="
        )
    if params["weights"] is not None and not (names_backbone(params) or model in MODELS):
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


def check_memory(params: Mapping[str, Any], kind: type[Method] | None) -> None:
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


def is_fine_tuned(params: Mapping[str, Any]) -> bool:
    """Whether layers of a pretrained backbone are trained."""
    return params["finetune"] in ("last", "all")


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


def named_transforms(given: Any, photos: bool) -> tuple[str, ...]:
    """Return the names of transforms; "auto" means crops and flips for photos."""
    if isinstance(given, str) and given == "auto":
        return ("crop", "flip") if photos else ()
    names: tuple[str, ...] = () if given is None else check("transforms", given)
    return names


def shared(group: type[Settings], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that are parameters of the classifier, too."""
    return {name: params[name] for name in group.model_fields if name in params}
