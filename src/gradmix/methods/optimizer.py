"""Save and restore the state of an optimizer, checked before its first step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.errors import InputError


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the state of each parameter, in order; hyperparameters follow from the settings."""
    return [dict(optimizer.state.get(parameter, {})) for parameter in _parameters(optimizer)]


def load_optimizer(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """Restore the state of each parameter.

    Raises:
        InputError: If the state is not one that this optimizer has for its parameters.
    """
    parameters = _parameters(optimizer)
    if len(saved) != len(parameters):
        raise InputError(
            f"optimizer: the state of {len(saved)} parameters is saved; there are {len(parameters)}"
        )
    for number, (state, own) in enumerate(zip(saved, _after_a_step(optimizer), strict=True)):
        if state:
            _check(f"optimizer.{number}", state, own)
    for parameter, state in zip(parameters, saved, strict=True):
        if state:
            optimizer.state[parameter] = dict(state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _after_a_step(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the state that a copy has after one step, to compare saved states with."""
    trial = copy.deepcopy(optimizer)
    for parameter in _parameters(trial):
        parameter.grad = torch.zeros_like(parameter)
    trial.step()
    return optimizer_state(trial)


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
        elif not bool(torch.isfinite(value).all()) or (name == "step" and float(value) < 0):
            raise InputError(f"{where}.{name} has values that are negative or not finite")
