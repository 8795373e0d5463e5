"""GradMix in Avalanche: a plugin that mixes the batches of its replay strategies.

The plugin needs Avalanche 0.6 but does not import it. Avalanche calls a plugin by the names of its
methods.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gradmix.errors import InputError
from gradmix.mixing.gradmix import GradMix

READ_BATCH = 1024  # samples that are read at once


class GradMixPlugin:
    """Mixes each batch of new and replayed samples before Avalanche's forward pass.

    Add it to a strategy that replays, such as `Replay`, or to any strategy beside a
    `ReplayPlugin`. The criterion of the strategy must accept soft labels, as
    `nn.CrossEntropyLoss` does. Metrics see the labels of the unmixed batch.

    The training samples of an experience and of the buffer are read once per experience, and held
    in memory as network inputs: random transforms of the data set are drawn once for partners from
    outside the batch.

    Args:
        mixer: The mixer; None is `GradMix()`.

    Example:
        strategy = Replay(model=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(),
                          mem_size=320, plugins=[GradMixPlugin()])
    """

    def __init__(self, mixer: GradMix | None = None) -> None:
        self.mixer = GradMix() if mixer is None else mixer
        self._labels: Tensor | None = None  # of the batch that is mixed at the moment

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Read the samples of the experience and of the buffer.

        Raises:
            InputError: If no plugin of the strategy has a buffer of exemplars.
        """
        policies = [p.storage_policy for p in strategy.plugins if hasattr(p, "storage_policy")]
        if not policies:
            raise InputError(
                "strategy has no plugin with a buffer of exemplars; use Replay, or add a "
                "ReplayPlugin before GradMixPlugin"
            )
        self._current = _samples(strategy.adapted_dataset, strategy.device)
        buffer = policies[0].buffer
        self._memory = _samples(buffer, strategy.device) if len(buffer) else None

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Find the harmful class pairs with the model as it is now."""
        self.mixer.refresh(strategy.model, memory=self._memory, current=self._current)

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Replace the inputs of the batch by mixed ones, and its labels by soft labels."""
        x, self._labels = strategy.mbatch[0], strategy.mbatch[1]
        strategy.mbatch[0], strategy.mbatch[1] = self.mixer(x, self._labels)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Restore the labels: the loss is known, and metrics need them."""
        strategy.mbatch[1] = self._labels


def _samples(dataset: Any, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of an Avalanche data set, whose items are (x, y, task)."""
    batches = [(batch[0], batch[1]) for batch in DataLoader(dataset, READ_BATCH)]
    x, y = (torch.cat(parts).to(device) for parts in zip(*batches, strict=True))
    return x, y
