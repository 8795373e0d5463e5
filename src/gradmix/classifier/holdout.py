"""Samples held out of training: some are stored for measuring, some are for early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from gradmix.errors import InputError
from gradmix.files.schema import Schema, TensorOf
from gradmix.memory import ReplayMemory
from gradmix.memory.replay import Kept, first_of_each_class
from gradmix.methods import Method
from gradmix.training.loop import EpochDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples

MEASURED_SHARE = 4  # at most one of so many new samples of a class is held out for measuring


def new_holdout(params: Mapping[str, Any]) -> ReplayMemory | None:
    """Return an empty memory for samples to measure on; None if none are held out."""
    number = params["holdout_per_class"]
    return ReplayMemory(exemplars_per_class=number) if number else None


def offer(holdout: ReplayMemory, given: Samples, priority: Tensor) -> Tensor:
    """Let samples compete for the holdout by priority.

    Every sample ever seen of a class has about the same chance to be held out.

    Returns:
        A mask of the samples that did not get in, (N,).
    """
    x, y = given
    left = torch.ones(len(y), dtype=torch.bool, device=y.device)
    candidates = first_of_each_class(y, priority, y.bincount() // MEASURED_SHARE)
    if not len(candidates):
        return left
    holdout.extras = {"row": torch.full_like(holdout.y, -1)} if len(holdout) else {}
    rows = {"row": candidates}
    holdout.add(Samples(x[candidates], y[candidates]), priority[candidates], rows)
    taken = holdout.extras["row"]
    holdout.extras = {}
    left[taken[taken >= 0]] = False
    return left


class StoppingState(Schema):
    """The state of early stopping in a checkpoint."""

    best: Annotated[int, Field(ge=-1)]
    since: Annotated[int, Field(ge=0)]
    weights: dict[str, dict[str, Annotated[Tensor, TensorOf()]]]
    returned: bool


class EarlyStopping:
    """Ends the first stage when the accuracy on held-out samples stops rising.

    The networks then return to the weights of the best epoch. The exemplars return to the memory
    at the end of the call.

    Args:
        samples: The held-out samples.
        exemplars: Those of them that came from the memory.
        patience: Epochs without a rise before the stage ends.
    """

    def __init__(self, samples: Samples, exemplars: Kept | None, patience: int) -> None:
        self._samples, self._exemplars, self._patience = samples, exemplars, patience
        self._best, self._since = -1, 0
        self._weights: dict[str, dict[str, Tensor]] = {}

    @classmethod
    def split(
        cls, method: Method, train: Samples, params: Mapping[str, Any]
    ) -> tuple[Tensor, EarlyStopping]:
        """Hold out a share of each class of the new samples and of the memory, for this call.

        Returns:
            A mask of the new samples that remain for training, (N,), and the early stopping.
        """
        share = params["validation_fraction"]
        generator = method.streams.device("validation")
        chosen = _share_of_each(train.y, share, generator)
        samples = [Samples(train.x[chosen], train.y[chosen])]
        kept = None
        if len(method.memory):
            spared = _share_of_each(method.memory.y, share, generator)
            if bool(spared.any()):  # with one exemplar per class there is none to spare
                kept = method.memory.split_off(spared)
                samples.append(kept.samples)
        x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
        return ~chosen, cls(Samples(x, y), kept, params["patience"])

    def note(self, training: Training, event: EpochDone) -> bool:
        """Look at the accuracy after an epoch; return whether the stage ends early."""
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
        """Return the state, for a checkpoint."""
        return {
            "best": self._best,
            "since": self._since,
            "weights": self._weights,
            "returned": self._exemplars is None,
        }

    def load_state(self, state: StoppingState, method: Method) -> None:
        """Continue from a checkpoint; the samples were held out again.

        Raises:
            InputError: If the saved weights are not those of the method's networks.
        """
        own = {name: net.state_dict() for name, net in method.networks().items()}
        if not _shapes(state.weights).items() <= _shapes(own).items():
            raise InputError("record.stopping.weights belong to another network")
        self._best, self._since, self._weights = state.best, state.since, state.weights
        if state.returned:
            self._exemplars = None


def _share_of_each(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return a mask of about this share of every class, and of at most half of it."""
    priority = torch.rand(len(y), generator=generator, device=y.device, dtype=torch.float64)
    counts = y.bincount()
    quota = torch.minimum((counts * share).ceil().long(), counts // 2)
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[first_of_each_class(y, priority, quota)] = True
    return chosen


def _shapes(weights: Mapping[str, Mapping[str, Tensor]]) -> dict[tuple[str, str], Any]:
    """Return shape and dtype of every weight, by network and name."""
    return {
        (network, name): (value.shape, value.dtype)
        for network, part in weights.items()
        for name, value in part.items()
    }
