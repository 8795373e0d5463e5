"""Early stopping: some new samples and exemplars are kept from training and looked at instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradmix.memory.replay import Kept
from gradmix.memory.selection import first_of_each_class
from gradmix.methods import Method
from gradmix.training.evaluate import count_correct
from gradmix.training.loop import EpochDone, Training
from gradmix.types import Samples


def hold_out(
    method: Method, train: Samples, params: Mapping[str, Any]
) -> tuple[Samples, EarlyStopping]:
    """Take a share of each class out of new samples and memory, for this call."""
    share = params["validation_fraction"]
    generator = method.streams.device("validation")
    chosen = _share_of_each(train.y, share, generator)
    samples = [Samples(train.x[chosen], train.y[chosen])]
    kept = None
    if len(method.memory):
        spared = _share_of_each(method.memory.y, share, generator)
        if bool(spared.any()):  # of one exemplar of each class there is none to spare
            kept = method.memory.split_off(spared)
            samples.append(kept.samples)
    x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
    stopping = EarlyStopping(Samples(x, y), kept, params["patience"])
    return Samples(train.x[~chosen], train.y[~chosen]), stopping


def _share_of_each(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A mask of about so large a share of every class, and never of all of it."""
    priority = torch.rand(len(y), generator=generator, device=y.device, dtype=torch.float64)
    counts = y.bincount()
    quota = torch.minimum((counts * share).ceil().long(), counts // 2)
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[first_of_each_class(y, priority, quota)] = True
    return chosen


class EarlyStopping:
    """Ends the first stage when the accuracy on samples kept from training stops rising.

    The weights are then those of the best epoch. Exemplars return to the memory at the end.
    """

    def __init__(self, samples: Samples, exemplars: Kept | None, patience: int) -> None:
        self._samples, self._exemplars, self._patience = samples, exemplars, patience
        self._best, self._since = -1, 0
        self._weights: dict[str, dict[str, Tensor]] = {}

    def note(self, training: Training, event: EpochDone) -> bool:
        """After an epoch; whether the stage ends now, before its time."""
        stopped = False
        if training.position.stage == 0 and len(self._samples.y):
            stopped = self._look(training, event)
        last = training.position.stage + 1 == len(training.method.stages())
        if last and training.position.epoch >= event.epochs and self._exemplars is not None:
            training.method.memory.add(*self._exemplars)
            self._exemplars = None
        return stopped

    def _look(self, training: Training, event: EpochDone) -> bool:
        method = training.method
        number = training.benchmark.num_classes
        right = int(count_correct(method.predict, self._samples, method.normalise, number).sum())
        self._since += 1
        if right > self._best:
            self._best, self._since = right, 0
            self._weights = {
                name: {key: value.clone() for key, value in network.state_dict().items()}
                for name, network in method.networks().items()
            }
        over = event.epoch >= event.epochs
        stopped = self._since >= self._patience and not over
        if stopped or over:
            for name, network in method.networks().items():
                network.load_state_dict(self._weights[name])
        if stopped:
            training.end_stage()
        return stopped

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        returned = self._exemplars is None
        return {
            "best": self._best,
            "since": self._since,
            "weights": self._weights,
            "returned": returned,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint; the samples were held out anew."""
        self._best, self._since, self._weights = (
            state[name] for name in ("best", "since", "weights")
        )
        if state["returned"]:
            self._exemplars = None
