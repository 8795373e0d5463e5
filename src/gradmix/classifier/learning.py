"""One call of fit or partial_fit: one task of the training loop, from what was learned before."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradmix.classifier.call import Call, Data, Watch
from gradmix.classifier.choices import FIXED, budget, choose, choose_model
from gradmix.classifier.inputs import look_symbolic
from gradmix.classifier.labels import Labels
from gradmix.classifier.learned import Basis, Learned, digest
from gradmix.classifier.report import few_samples
from gradmix.data.datasets import channel_statistics, check_statistics
from gradmix.errors import DataWarning, InputError
from gradmix.randomness import RandomStreams
from gradmix.training.build import make_fabric, torch_threads
from gradmix.types import Samples

FEW_SAMPLES = 5  # of a class, below which a warning is given
DETAILED_CALLS = 20  # of the history, whose reports keep their pairs


def learn(
    before: Learned | None, params: Mapping[str, Any], seed: int, data: Data, watch: Watch
) -> Learned:
    """What is known after these data; `before` stays as it is."""
    labels = (before.labels if before else Labels()).add(data.y, data.announced)
    fabric = make_fabric(params["device"], params["precision"])
    basis = _basis(before, params, seed, data, fabric.device)
    _check_room(params, len(labels.known))
    y = labels.encode(data.y)
    counts = _counts(before, y, len(labels.known))
    remarks = _remarks(before, data, labels, y, counts)
    choices = choose(params, basis.model, data.layout, len(y), len(labels.known))
    with torch_threads(params["threads"]):
        call = Call(before, basis, choices, labels, Samples(data.x, y), data, fabric)
        identity = None if watch.checkpoint is None else call.identity(data)
        number = len(before.history) + 1 if before else 1
        with RandomStreams(basis.seed, fabric.device).as_global(f"call {number}"):  # for dropout
            call.train(watch, identity)
        report = call.report(remarks)
        history = (*(before.history if before else ()), report)
    history = tuple(
        entry if entry.call > report.call - DETAILED_CALLS else entry.shortened()
        for entry in history
    )
    finished = "" if identity is None else digest(identity)
    return Learned(basis, labels, call.method, call.holdout, counts, history, finished)


def _basis(
    before: Learned | None, params: Mapping[str, Any], seed: int, data: Data, device: torch.device
) -> Basis:
    if before is not None:
        for name in FIXED:
            was = before.basis.params[name]
            if params[name] is not was and params[name] != was:
                raise InputError(
                    f"{name} is {params[name]!r} and was {was!r} when this classifier began to "
                    "learn; set it back, or start anew with fit"
                )
        return replace(before.basis, params=dict(params))
    mean, std = params["mean"], params["std"]
    computed = channel_statistics(data.x)
    mean = computed[0] if mean is None else _numbers("mean", mean)
    std = computed[1] if std is None else _numbers("std", std)
    check_statistics(mean, std, data.layout.shape[0])
    if data.layout.images and params["std"] is not None and max(std) < 1:
        raise InputError(
            f"std is {std}; give mean and std of images for bytes, 0 to 255, also where X has "
            "floats from 0 to 1: multiply both by 255"
        )
    model = choose_model(params["model"], data.layout, device)
    return Basis(dict(params), data.layout, model, mean, std, seed)


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, given))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} is {given!r}; give a number for each channel or column"
        ) from error


def _check_room(params: Mapping[str, Any], classes: int) -> None:
    size = params["head_size"]
    if size is not None and classes > size:
        raise InputError(
            f"head_size is {size}, and these would be {classes} classes; start anew with a larger "
            "one, or without"
        )
    budget(params, classes)


def _counts(before: Learned | None, y: Tensor, classes: int) -> tuple[int, ...]:
    counts = y.bincount(minlength=classes).tolist()
    for k, count in enumerate(before.counts if before else ()):
        counts[k] += count
    return tuple(counts)


def _remarks(
    before: Learned | None, data: Data, labels: Labels, y: Tensor, counts: tuple[int, ...]
) -> list[str]:
    """Warn of data that can hardly be learned; what was said."""
    remarks = [
        f"{few_samples(labels.known[k])}{counts[k]} sample{'s' * (counts[k] > 1)} so far; with "
        f"fewer than {FEW_SAMPLES} it can hardly be learned"
        for k in y.unique().tolist()
        if counts[k] < FEW_SAMPLES
    ]
    if look_symbolic(data.x):
        remarks.append(
            "most columns of X have few different whole numbers, like codes of symbols; mixing "
            "such rows makes little sense: try mix='none'"
        )
    for text in remarks:
        warnings.warn(text, DataWarning, stacklevel=5)
    return remarks
