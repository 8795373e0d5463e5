"""Optimizers by name, the learning rate at every step, and the state of an optimizer.

The learning rate is a function of the position in a stage, so that nothing but the position has to
be saved to resume exactly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.errors import InputError, UnknownNameError
from gradmix.models.parallel import split_like
from gradmix.settings import TrainingSettings

Groups = list[dict[str, Any]]  # parameters, and `lr_scale` where their learning rate differs
START, END, RISE = 1 / 25, 1e-4 / 25, 0.3  # of "one-cycle", as in PyTorch's OneCycleLR

OPTIMIZERS: dict[str, Callable[[Groups, TrainingSettings], torch.optim.Optimizer]] = {
    "sgd": lambda groups, s: torch.optim.SGD(
        groups, s.lr, momentum=s.momentum, weight_decay=s.weight_decay
    ),
    "adam": lambda groups, s: torch.optim.Adam(groups, s.lr, weight_decay=s.weight_decay),
    "adamw": lambda groups, s: torch.optim.AdamW(groups, s.lr, weight_decay=s.weight_decay),
}
"""The optimizers by name; add your own to use it as the setting `optimizer`."""


def check_optimizer(name: str) -> None:
    """Raise UnknownNameError if there is no optimizer of this name."""
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)


def lr_factor(settings: TrainingSettings, done: float, step: float, epochs: int) -> float:
    """Return the learning rate of a step as a multiple of the setting `lr`.

    Args:
        settings: The schedule.
        done: Epochs of the stage that are finished, with fractions.
        step: Length of one step in epochs.
        epochs: Epochs of the stage.

    >>> half_way = {"done": 5.0, "step": 0.1, "epochs": 10}
    >>> lr_factor(TrainingSettings(schedule="cosine"), **half_way)
    0.5
    >>> lr_factor(TrainingSettings(schedule="steps", lr_steps=(2,)), **half_way)
    0.1
    """
    if settings.schedule == "one-cycle":
        rise = settings.warmup or RISE * epochs
        if done < rise:
            return _cosine(START, 1.0, done / rise)
        return _cosine(1.0, END, (done - rise) / (epochs - rise))
    if done < settings.warmup:
        return min(1.0, (done + step) / settings.warmup)
    if settings.schedule == "cosine":
        return _cosine(1.0, 0.0, (done - settings.warmup) / (epochs - settings.warmup))
    return float(0.1 ** sum(done >= at for at in settings.lr_steps))


def _cosine(start: float, end: float, share: float) -> float:
    """Return the value after a share of the way from start to end, along half a cosine wave."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the state of each parameter, in order; hyperparameters follow from the settings."""
    return [dict(optimizer.state.get(parameter, {})) for parameter in _parameters(optimizer)]


def load_optimizer(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """Restore the state of each parameter, which must be one that this optimizer has for it."""
    trial = copy.deepcopy(optimizer)
    for parameter in _parameters(trial):
        parameter.grad = torch.zeros_like(parameter)
    trial.step()
    expected = optimizer_state(trial)  # what a state looks like after one step
    if len(saved) != len(expected):
        raise InputError(
            f"optimizer: the state of {len(saved)} parameters is saved; there are {len(expected)}"
        )
    states = {}
    for number, (state, own) in enumerate(zip(saved, expected, strict=True)):
        if state:
            _check(f"optimizer.{number}", state, own)
            states[number] = {
                name: split_like(value, own[name]) if isinstance(value, Tensor) else value
                for name, value in state.items()
            }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check(where: str, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    if state.keys() != own.keys():
        raise InputError(f"{where} has {sorted(state)}; this optimizer has {sorted(own)}")
    for name, value in state.items():
        expected = own[name]
        if not isinstance(value, Tensor) or not isinstance(expected, Tensor):
            if type(value) is not type(expected):
                raise InputError(f"{where}.{name} is a {type(value).__name__}")
        elif value.shape != expected.shape or value.dtype != expected.dtype or value.is_meta:
            raise InputError(
                f"{where}.{name} is {value.dtype} {tuple(value.shape)}; its parameter needs "
                f"{expected.dtype} {tuple(expected.shape)}"
            )
        elif not bool(torch.isfinite(value).all()) or (
            name in ("step", "exp_avg_sq") and bool((value < 0).any())
        ):
            raise InputError(f"{where}.{name} has values that are negative or not finite")
