"""Samples held out of training: some are stored for measuring, some are for early stopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from gradmix.errors import InputError
from gradmix.files.schema import Schema, TensorOf
from gradmix.memory import ReplayMemory
from gradmix.memory.replay import Kept, first_of_each_class
from gradmix.methods import Method
from gradmix.training.loop import EpochDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples

MEASURED_SHARE = 4  # at most a quarter of the new samples of a class is held out for measuring


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
    """The state of early stopping; the checkpoint of a call contains it."""

    model_config = ConfigDict(frozen=False)

    best: Annotated[int, Field(ge=-1)]  # most correct predictions after an epoch
    since: Annotated[int, Field(ge=0)]  # epochs since then
    weights: dict[str, dict[str, Annotated[Tensor, TensorOf()]]]  # of that epoch, by network
    returned: bool  # whether the exemplars are back in the memory


class EarlyStopping:
    """Ends the first stage when the accuracy on held-out samples stops rising.

    The networks then return to the weights of the best epoch. The exemplars return to the memory
    at the end of the call.

    Args:
        samples: The held-out samples, in one or more parts.
        exemplars: Those of them that came from the memory.
        patience: Epochs without a rise before the stage ends.
    """

    def __init__(self, samples: Sequence[Samples], exemplars: Kept | None, patience: int) -> None:
        self._samples, self._exemplars, self._patience = samples, exemplars, patience
        self.state = StoppingState(best=-1, since=0, weights={}, returned=exemplars is None)

    @classmethod
    def split(
        cls, method: Method, train: Samples, params: Mapping[str, Any]
    ) -> tuple[Tensor, EarlyStopping]:
        """Hold out a share of each class of the new samples and of the memory, for this call.

        Returns:
            A mask of the new samples that remain for training, (N,), and the early stopping.
        """
        share, generator = params["validation_fraction"], method.streams.device("validation")
        chosen = _share_of_each(train.y, share, generator)
        samples = [Samples(train.x[chosen], train.y[chosen])]
        kept = None
        if len(method.memory):
            spared = _share_of_each(method.memory.y, share, generator)
            if bool(spared.any()):  # with one exemplar per class there is none to spare
                kept = method.memory.split_off(spared)
                samples.append(kept.samples)
        if isinstance(train.x, Tensor):  # samples in files stay there
            x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
            samples = [Samples(x, y)]
        return ~chosen, cls(samples, kept, params["patience"])

    def note(self, training: Training, event: EpochDone) -> bool:
        """Look at the accuracy after an epoch; return whether the stage ends early."""
        stopped = False
        if training.position.stage == 0 and any(len(part.y) for part in self._samples):
            stopped = self._look(training, event)
        last = training.position.stage + 1 == len(training.method.stages())
        over = last and training.position.epoch >= event.epochs
        if over and self._exemplars is not None and not self.state.returned:
            training.method.memory.add(*self._exemplars)
            self.state.returned = True
        return stopped

    def _look(self, training: Training, event: EpochDone) -> bool:
        method, state, number = training.method, self.state, training.benchmark.num_classes
        right = sum(
            int(count_correct(method.predict, part, method.normalise, number).sum())
            for part in self._samples
            if len(part.y)
        )
        state.since += 1
        if right > state.best:
            state.best, state.since = right, 0
            state.weights = {
                name: {key: value.clone() for key, value in network.state_dict().items()}
                for name, network in method.networks().items()
            }
        over = event.epoch >= event.epochs
        stopped = state.since >= self._patience and not over
        if stopped or over:
            for name, network in method.networks().items():
                network.load_state_dict(state.weights[name])
        if stopped:
            training.end_stage()
        return stopped

    def load_state(self, state: StoppingState, method: Method) -> None:
        """Continue from a checkpoint; the samples were held out again.

        Raises:
            InputError: If the saved weights do not fit the method's networks.
        """
        own = {name: net.state_dict() for name, net in method.networks().items()}
        if not _shapes(state.weights).items() <= _shapes(own).items():
            raise InputError("record.stopping.weights belong to another network")
        self.state = state


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
