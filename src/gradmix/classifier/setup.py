"""What the first call of a classifier settles: the form of the samples, the network, the seed.

Each call asks its `Setup` for the design of its training and for a new network.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradmix.classifier.defaults import (
    Params,
    budget,
    check_memory,
    choose_holdout,
    choose_method,
    choose_mix,
    choose_model,
    find_backbone,
    given_settings,
    is_fine_tuned,
    named_transforms,
    photo_layout,
)
from gradmix.classifier.inputs import Layout, reading
from gradmix.data.datasets import channel_statistics, check_statistics
from gradmix.errors import InputError
from gradmix.methods import Method, find_method
from gradmix.mixing import parse_recipe
from gradmix.models import adapt, build_empty_model, build_model, load_backbone, new_linear
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import Backbone
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import (
    CONVOLUTIONAL_PRESET,
    FEW_STEPS_PRESET,
    CriterionSettings,
    MixSettings,
    TrainingSettings,
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
MANY_STEPS = 2000
"""Mixes in `HIGH_TAU` use `FEW_STEPS_PRESET` below this number of steps; see docs/classifier.md."""
HIGH_TAU = ("balanced-remix", "gradmix+")
"""Mixes whose own τ is too high for few steps."""

Numbers = tuple[float, ...]


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

    def outputs(self, known: int) -> int:
        """Return the number of outputs of a new network for a number of known classes."""
        size = self.params["head_size"]
        return known if size is None else int(size)

    def with_params(self, params: Params) -> Setup:
        """Return the setup of another call; InputError if a parameter differs that must not."""
        if params["holdout_per_class"] is None:
            params = {**params, "holdout_per_class": self.params["holdout_per_class"]}
        for name in FIXED:
            was = self.params[name]
            if params[name] is not was and params[name] != was:
                raise InputError(
                    f"{name} is {params[name]!r} and was {was!r} in the first call; set it back, "
                    "or call fit to start again"
                )
        return replace(self, params=dict(params))

    def design(self, samples: int, classes: int) -> Design:
        """Return the design of a call.

        Args:
            samples: The number of new samples.
            classes: The number of classes that are known after the call.
        """
        params, kind = self.params, find_method(self.method)
        self._check_method(kind)
        steps = max(1, samples // params["batch_size"])
        epochs = self._epochs(steps)
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
            exemplars_per_class=each,
            memory_total=total,
            criterion=CriterionSettings(**given_settings(CriterionSettings, params)),
            selection=params["exemplar_selection"],
        )

    def _check_method(self, kind: type[Method]) -> None:
        params = self.params
        check_memory(params, kind)
        if self.layout.images and kind.replays and not params["keep_images"]:
            raise InputError(
                f"keep_images is False, and {self.method} replays images; use a pretrained "
                "backbone, whose embeddings it can replay, or omit keep_images"
            )
        if params["early_stopping"] and not kind.trains:
            raise InputError(f"early_stopping is True, but {self.method} has no epochs; omit it")

    def _epochs(self, steps: int) -> int:
        if self.params["epochs"] is not None:
            return int(self.params["epochs"])
        if is_fine_tuned(self.params):
            return FINE_TUNE_EPOCHS
        return min(max(EPOCHS, math.ceil(STEPS / steps)), MOST_EPOCHS)

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
        self,
        design: Design,
        outputs: int,
        num_classes: int,
        streams: RandomStreams,
        *,
        loads: bool,
        ranks: Ranks = ALONE,
    ) -> Method:
        """Return a method with a new network; `loads`: saved weights will replace its weights."""

        def network(generator: torch.Generator) -> nn.Module:
            return self._network(outputs, generator, loads)

        shape, mean, std = self.layout.shape, self.mean, self.std
        return design.build(network, num_classes, shape, mean, std, streams, ranks)

    def _network(self, outputs: int, generator: torch.Generator, loads: bool) -> nn.Module:
        params = self.params
        if is_fine_tuned(params):
            backbone = find_backbone({**params, "weights": None} if loads else params)
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
    params = {**params, "holdout_per_class": choose_holdout(params, backbone)}
    size = layout.shape[0]
    if backbone is not None:
        return Setup(params, layout, "linear", (0.0,) * size, (1.0,) * size, seed, backbone)
    if is_fine_tuned(params):  # the network has its own normalisation, of values from 0 to 1
        return Setup(params, layout, params["model"], (0.0,) * size, (255.0,) * size, seed)
    model = choose_model(params["model"], layout, device)
    mean, std = _normalisation(params, model, x, layout)
    return Setup(params, layout, model, mean, std, seed)


def _normalisation(
    params: Params, model: str | nn.Module, x: Tensor, layout: Layout
) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation: as given, or computed from the first data."""
    size = layout.shape[0]
    mean, std = (0.0,) * size, (1.0,) * size
    # Statistics of the first data would make closed forms depend on the order of the calls.
    if find_method(choose_method(params["method"], model)).trains:
        mean, std = channel_statistics(x)
    mean = mean if params["mean"] is None else _numbers("mean", params["mean"])
    std = std if params["std"] is None else _numbers("std", params["std"])
    check_statistics(mean, std, size)
    if layout.images and params["std"] is not None and max(std) < 1:
        raise InputError(
            f"std is {std}; give mean and std of images for bytes, 0 to 255, even if X has floats "
            "from 0 to 1: multiply both by 255"
        )
    return mean, std


def _numbers(name: str, given: Any) -> Numbers:
    try:
        return tuple(map(float, given))
    except Exception as error:
        raise InputError(
            f"{name} is {str(given)[:80]!r}; give a number for each channel or column"
        ) from error
