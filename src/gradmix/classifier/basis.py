"""What the first call settles: the form of the samples, the network and the normalisation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradmix.classifier.defaults import CallPlan, choose_holdout, choose_model, pretrained
from gradmix.classifier.features import Features
from gradmix.classifier.inputs import Layout, reading
from gradmix.classifier.params import FIXED, choose_method, is_fine_tuned
from gradmix.criterion import evaluating
from gradmix.data.datasets import channel_statistics, check_statistics
from gradmix.errors import InputError
from gradmix.methods import Method, find_method
from gradmix.models import adapt, build_empty_model, build_model, load_backbone, new_linear
from gradmix.models.finetune import fine_tune
from gradmix.randomness import RandomStreams

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Basis:
    """What the first call settles."""

    params: dict[str, Any]  # of the last call; those in `defaults.FIXED` never change
    layout: Layout  # of samples
    model: str | nn.Module  # the network by name, or the caller's
    mean: Numbers  # per channel or column
    std: Numbers
    seed: int
    features: Features | None = None  # turns photos into the samples, if a backbone is used

    @property
    def given(self) -> Layout:
        """The form of the samples that callers give: photos, or the samples themselves."""
        return self.layout if self.features is None else self.features.photos

    @property
    def builds_empty(self) -> bool:
        """Whether a network for saved weights can be built without drawing other weights."""
        return isinstance(self.model, str) or is_fine_tuned(self.params)

    def outputs(self, known: int) -> int:
        """Return the outputs of a new network when so many classes are known."""
        size = self.params["head_size"]
        return known if size is None else int(size)

    def with_params(self, params: Mapping[str, Any]) -> Basis:
        """Return the basis of another call; InputError if a parameter differs that must not."""
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

    def new_method(
        self,
        plan: CallPlan,
        outputs: int,
        num_classes: int,
        streams: RandomStreams,
        *,
        empty: bool = False,
    ) -> Method:
        """Return a method with a new network; an `empty` network waits for saved weights."""

        def network(generator: torch.Generator) -> nn.Module:
            return self._empty_network(outputs) if empty else self._network(outputs, generator)

        return plan.design.build(
            network, num_classes, self.layout.shape, self.mean, self.std, streams
        )

    def _network(self, outputs: int, generator: torch.Generator) -> nn.Module:
        """Return a new network; `generator` draws the weights that are not pretrained."""
        if is_fine_tuned(self.params):
            return self._fine_tuned(self.params, outputs, generator)
        if isinstance(self.model, str):
            built = build_model(self.model, self.layout.shape, outputs, generator=generator)
            if self.params["weights"] is not None and self.features is None:
                with reading("weights"):
                    load_backbone(built, self.params["weights"])
            return built
        network: Any = adapt(copy.deepcopy(self.model))
        head = network.head
        if head.out_features != outputs:
            bias = head.bias is not None
            network.head = new_linear(head.in_features, outputs, bias, generator=generator)
        return cast(nn.Module, network)

    def _empty_network(self, outputs: int) -> nn.Module:
        """Return a network to load saved weights into."""
        if is_fine_tuned(self.params):
            published = {**self.params, "weights": None}
            return self._fine_tuned(published, outputs, torch.Generator())
        assert isinstance(self.model, str)
        return build_empty_model(self.model, self.layout.shape, outputs)

    @staticmethod
    def _fine_tuned(
        params: Mapping[str, Any], outputs: int, generator: torch.Generator
    ) -> nn.Module:
        features = pretrained(params)
        assert features is not None
        return fine_tune(features.backbone, outputs, params["finetune"], generator=generator)


def first_basis(
    params: Mapping[str, Any],
    seed: int,
    x: Tensor,
    layout: Layout,
    features: Features | None,
    device: torch.device,
) -> Basis:
    """Return the basis of a first call with samples x, which `features` may have embedded."""
    params = {**params, "holdout_per_class": choose_holdout(params, features)}
    if features is not None:
        return Basis(dict(params), layout, "linear", *_identity(layout), seed, features)
    if is_fine_tuned(params):  # the network has its own normalisation, of values from 0 to 1
        channels = layout.shape[0]
        mean, std = (0.0,) * channels, (255.0,) * channels
        return Basis(dict(params), layout, params["model"], mean, std, seed)
    model = choose_model(params["model"], layout, device)
    mean, std = _normalisation(params, model, x, layout)
    return Basis(dict(params), layout, model, mean, std, seed)


def _normalisation(
    params: Mapping[str, Any], model: str | nn.Module, x: Tensor, layout: Layout
) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation as given, or those of the first data."""
    if find_method(choose_method(params["method"], model)).trains:
        mean, std = channel_statistics(x)
    else:  # those of the first data would make the result depend on the order of the calls
        mean, std = _identity(layout)
    mean = mean if params["mean"] is None else _numbers("mean", params["mean"])
    std = std if params["std"] is None else _numbers("std", params["std"])
    check_statistics(mean, std, layout.shape[0])
    if layout.images and params["std"] is not None and max(std) < 1:
        raise InputError(
            f"std is {std}; give mean and std of images for bytes, 0 to 255, even if X has floats "
            "from 0 to 1: multiply both by 255"
        )
    return mean, std


def _identity(layout: Layout) -> tuple[Numbers, Numbers]:
    """Return a mean of 0 and a standard deviation of 1 for each channel or column."""
    size = layout.shape[0]
    return (0.0,) * size, (1.0,) * size


def _numbers(name: str, given: Any) -> Numbers:
    try:
        return tuple(map(float, given))
    except Exception as error:
        raise InputError(
            f"{name} is {str(given)[:80]!r}; give a number for each channel or column"
        ) from error


def check_takes(method: Method, x: Tensor) -> None:
    """Pass two samples through a copy of the caller's network before training starts."""
    network, some = copy.deepcopy(method.model), method.normalise(x[:2])
    try:
        with torch.no_grad(), evaluating(network):
            found = tuple(network(some).shape)
    except Exception as error:
        raise InputError(
            f"model cannot take samples of shape {tuple(x.shape[1:])}: "
            f"{type(error).__name__}: {error}"
        ) from error
    wanted = len(some), method.head.out_features
    if found != wanted:
        raise InputError(
            f"model returns shape {found} for {len(some)} samples; it must return {wanted}"
        )
