"""The classifier's parameters: their checks, and the `Setup` that the first call settles."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gradmix._setting_types import Settings
from gradmix.classifier.inputs import Layout, reading
from gradmix.criterion import find_head
from gradmix.data.augment import TRANSFORMS
from gradmix.data.datasets import channel_statistics, check_statistics
from gradmix.errors import InputError, MissingPackageError, UnknownNameError
from gradmix.memory import ReplayMemory
from gradmix.methods import Method, find_method
from gradmix.mixing import parse_recipe
from gradmix.models import MODELS, adapt, build_empty_model, build_model, load_backbone, new_linear
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import PRETRAINED, Backbone, is_pretrained, load_pretrained
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import (
    CONVOLUTIONAL_PRESET,
    FEW_STEPS_PRESET,
    CriterionSettings,
    MemorySettings,
    MixSettings,
    TrainingSettings,
    check,
    check_classifier,
)
from gradmix.training.build import Design

DEFAULT = "efficientnet-lite0"  # the backbone for photos, if its weights are installed
SMALL_GREY, SMALL = 32, 16  # an MLP is chosen for images with sides up to this: grey, and any
HELD_OUT = 10  # photos per class with a backbone: for two classes, enough for 5% false alarms
FIXED = (  # parameters that cannot change between calls of partial_fit
    *("method", "model", "head_size", "exemplars_per_class", "memory_total"),
    *("holdout_per_class", "keep_images", "image_size", "mean", "std", "weights", "finetune"),
)
EPOCHS, STEPS, MOST_EPOCHS = 20, 1000, 200  # more than EPOCHS until there are STEPS steps
FINE_TUNE_EPOCHS = 5  # with layers of a pretrained backbone: an epoch takes long on a CPU
HIGH_TAU = ("balanced-remix", "gradmix+")  # mixes whose own τ is too high for few steps
MANY_STEPS = 2000  # below, they use `FEW_STEPS_PRESET`; see docs/classifier.md

Params = Mapping[str, Any]
Numbers = tuple[float, ...]

# --- checks ---------------------------------------------------------------------------------


def checked_params(params: Params) -> dict[str, Any]:
    """Return parameters as files store them, checked: plain numbers, lists and dicts."""
    with reading("a parameter"):
        plain = {name: _plain(value) for name, value in params.items()}
        check_params(plain)
    return plain


def _plain(value: Any) -> Any:
    """Return a parameter without NumPy and PyTorch types; networks stay."""
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
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
    transforms = named_transforms(params["transforms"], photos=False)
    check_classifier({**params, "transforms": transforms})
    _check_model(params)
    for name in transforms:
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
    kind.read_options(dict(params["options"] or {}))
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


def _memory_params(params: Params) -> tuple[int | None, int | None, int]:
    """Return the exemplars per class and in total, and those held out of each class."""
    each, total = params["exemplars_per_class"], params["memory_total"]
    return each, total, params["holdout_per_class"] or 0  # None: not chosen yet


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
    most = max(0, each - least)
    if held > most:
        raise InputError(
            f"holdout_per_class is {held} and exemplars_per_class is {each}, which includes them; "
            f"hold out at most {most}"
        )


def budget(params: Params, classes: int) -> tuple[int | None, int | None]:
    """Return the exemplars for replay: a number per class, or a total for `classes` known ones."""
    each, total, held = _memory_params(params)
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
    return {name: params[name] for name in group.model_fields if params.get(name) is not None}


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
    """Return the backbone of a first call: the named one, or the default; photos have no layout."""
    if params["model"] == "auto":
        suits_mlp = layout is not None and _suits_mlp(layout)
        params = {**params, "model": None if suits_mlp else default_backbone()}
    return find_backbone(params)


@cache
def published_backbone(name: str, size: int | None) -> Backbone:
    """Return a backbone by name, loaded once per process; see `load_pretrained`."""
    return load_pretrained(name, input_size=size)


def default_backbone() -> str | None:
    """Return the default backbone for photos; None if its weights are not installed."""
    try:
        published_backbone(DEFAULT, None)
    except MissingPackageError:
        return None
    return DEFAULT


def find_backbone(params: Params) -> Backbone | None:
    """Return the backbone that `model` names, or a copy of the one it is; None for networks."""
    if not names_backbone(params):
        return None
    model, weights, size = (params[name] for name in ("model", "weights", "image_size"))
    own = {name: params[name] for name in ("mean", "std") if params[name] is not None}
    if isinstance(model, str) and own:
        raise InputError(
            f"mean is {params['mean']} and std is {params['std']}; omit them: {model} has its own "
            "normalisation"
        )
    if isinstance(model, str) and weights is None:
        return published_backbone(model, size)
    with reading("model or weights"):
        loaded = load_pretrained(copy.deepcopy(model), weights=weights, input_size=size)
    check_statistics(own.get("mean", loaded.mean), own.get("std", loaded.std), len(loaded.mean))
    changed = {name: tuple(value / 255 for value in values) for name, values in own.items()}
    return replace(loaded, **changed)  # type: ignore[arg-type]


def _suits_mlp(layout: Layout) -> bool:
    """Whether samples are rows, or images small enough for an MLP."""
    if not layout.images:
        return True
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


def named_transforms(given: Any, photos: bool) -> tuple[str, ...]:
    """Return the names of transforms; "auto" means crops and flips for photos."""
    if given == "auto":
        return ("crop", "flip") if photos else ()
    names: tuple[str, ...] = () if given is None else check("transforms", given)
    return names


def photo_layout(backbone: Backbone) -> Layout:
    """Return the form of the photos that a backbone takes."""
    return Layout((3, backbone.input_size, backbone.input_size))


# --- the setup ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What the first call settles."""

    params: dict[str, Any]  # of the last call; those in `FIXED` never change
    layout: Layout  # of samples
    model: str | nn.Module  # the network by name, or the caller's
    mean: Numbers  # per channel or column
    std: Numbers
    seed: int
    backbone: Backbone | None = None  # turns photos into the samples, if there is one

    @property
    def given(self) -> Layout:
        """The form of the samples that callers give: photos, or the samples themselves."""
        return self.layout if self.backbone is None else photo_layout(self.backbone)

    @property
    def method(self) -> str:
        """The name of the method."""
        return choose_method(self.params["method"], self.model)

    @property
    def image_network(self) -> bool:
        """Whether the network is made for images."""
        kinds = ("cnn", "resnet", "vit")
        named = isinstance(self.model, str) and self.model.startswith(kinds)
        return named or is_fine_tuned(self.params)

    @property
    def held_out(self) -> int:
        """How many samples of each class are only for measuring."""
        return _memory_params(self.params)[2]

    def new_holdout(self) -> ReplayMemory:
        """Return an empty memory for samples to measure on."""
        return ReplayMemory(exemplars_per_class=self.held_out)

    def outputs(self, known: int) -> int:
        """Return the number of outputs of a network for a number of known classes."""
        size: int = known if self.params["head_size"] is None else self.params["head_size"]
        if known > size:
            raise InputError(
                f"head_size is {size}, and there would be {known} classes; start again with a "
                "larger head_size, or with None"
            )
        return size

    def with_params(self, params: Params) -> Setup:
        """Return the setup of another call; InputError if a parameter differs that must not."""
        if params["holdout_per_class"] is None:
            params = {**params, "holdout_per_class": self.params["holdout_per_class"]}
        for name in FIXED:
            was = self.params[name]
            if params[name] is not was and params[name] != was:
                raise InputError(
                    f"{name} is {params[name]!r} and was {was!r} in the first call; omit it, or "
                    "start again: fit, or a new --model file"
                )
        return replace(self, params=dict(params))

    def design(self, samples: int, classes: int) -> Design:
        """Return the design of a call with new samples, after which `classes` are known."""
        params, kind = self.params, find_method(self.method)
        check_memory(params, kind)
        steps = max(1, samples // params["batch_size"])
        epochs = FINE_TUNE_EPOCHS
        if params["epochs"] is not None:
            epochs = int(params["epochs"])
        elif not is_fine_tuned(params):
            epochs = min(max(EPOCHS, math.ceil(STEPS / steps)), MOST_EPOCHS)
        mix = choose_mix(params["mix"], kind.replays, images=self.image_network)
        few = mix in HIGH_TAU and epochs * steps < MANY_STEPS
        usual = FEW_STEPS_PRESET if few else {}
        mixing = MixSettings(**{**usual, **given_settings(MixSettings, params), "mix": mix})
        each, total = budget(params, classes)
        return Design(
            method=self.method,
            recipe=parse_recipe(**dict(mixing)),
            settings=self._training(epochs),
            options=tuple(dict(params["options"] or {}).items()),
            memory=MemorySettings(
                exemplars_per_class=each,
                memory_total=total,
                exemplar_selection=params["exemplar_selection"],
            ),
            criterion=CriterionSettings(**given_settings(CriterionSettings, params)),
        )

    def _training(self, epochs: int) -> TrainingSettings:
        params, given = self.params, given_settings(TrainingSettings, self.params)
        convolutional = isinstance(self.model, str) and self.model.startswith(("cnn", "resnet"))
        usual = CONVOLUTIONAL_PRESET if convolutional else {}
        if given["lr_steps"]:
            usual = {**usual, "schedule": "steps"}
        head = "growing" if params["head_size"] is None else "fixed"
        return TrainingSettings(**{**usual, **given, "epochs": epochs, "head": head})

    def transforms(self) -> tuple[str, ...]:
        """Return the names of the transforms of training images."""
        shape, usual = self.layout.shape, self.layout.images and self.layout.shape[0] in (1, 3)
        names = named_transforms(self.params["transforms"], self.image_network and usual)
        if names and not usual:
            raise InputError(
                f"transforms is {list(names)}; transforms need images with 1 or 3 channels, and "
                f"these samples have shape {shape}"
            )
        return names

    def new_method(
        self, samples: int, known: int, streams: RandomStreams, *, loads: bool, ranks: Ranks = ALONE
    ) -> Method:
        """Return a method with a new network; `loads`: a saved state will replace the network's."""
        outputs = self.outputs(1 if loads else known)
        network, size = partial(self._network, outputs, loads), max(known, outputs)
        return self.design(samples, known).build(
            network, size, self.layout.shape, self.mean, self.std, streams, ranks
        )

    def _network(self, outputs: int, loads: bool, generator: torch.Generator) -> nn.Module:
        params = self.params
        if is_fine_tuned(params):
            given = {**params, "weights": None} if loads else params
            backbone = find_backbone(given)
            assert backbone is not None
            return fine_tune(backbone, outputs, params["finetune"], generator=generator)
        if isinstance(self.model, str):
            if loads:
                return build_empty_model(self.model, self.layout.shape, outputs)
            built = build_model(self.model, self.layout.shape, outputs, generator=generator)
            if params["weights"] is not None and self.backbone is None:
                with reading("weights"):
                    load_backbone(built, params["weights"])
            return built
        network: Any = adapt(copy.deepcopy(self.model))
        head = network.head
        if head.out_features != outputs:
            bias = head.bias is not None
            network.head = new_linear(head.in_features, outputs, bias, generator=generator)
        return cast(nn.Module, network)


def first_setup(
    params: Params,
    seed: int,
    x: Tensor,
    layout: Layout,
    backbone: Backbone | None,
    device: torch.device,
) -> Setup:
    """Return the setup of a first call with samples x, which `backbone` may have embedded."""
    if params["holdout_per_class"] is None:
        each, total, _ = _memory_params(params)
        held = 0 if backbone is None or total is not None else min(HELD_OUT, (each or 0) // 3)
        params = {**params, "holdout_per_class": held}
    zeros, ones = (0.0,) * layout.shape[0], (1.0,) * layout.shape[0]
    if backbone is not None:
        return Setup(dict(params), layout, "linear", zeros, ones, seed, backbone)
    model = params["model"]
    if is_fine_tuned(params):  # the network has its own normalisation, of values from 0 to 1
        return Setup(dict(params), layout, model, zeros, (255.0,) * len(ones), seed)
    if model == "auto":
        model = "cnn" if device.type == "cpu" else "resnet18"
        model = "mlp" if _suits_mlp(layout) else model
    # Statistics of the first data would make closed forms depend on the order of the calls.
    trains = find_method(choose_method(params["method"], model)).trains
    mean, std = channel_statistics(x) if trains else (zeros, ones)
    mean = mean if params["mean"] is None else params["mean"]
    std = std if params["std"] is None else params["std"]
    check_statistics(mean, std, layout.shape[0])
    if layout.images and params["std"] is not None and max(std) < 1:
        raise InputError(
            f"std is {std}; give mean and std of images for bytes, 0 to 255, even if X has floats "
            "from 0 to 1: multiply both by 255"
        )
    mean, std = tuple(map(float, mean)), tuple(map(float, std))
    return Setup(dict(params), layout, model, mean, std, seed)
