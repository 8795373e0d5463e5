"""GradMix in PyTorch Lightning: a callback that mixes the batches of a trainer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradmix.errors import InputError, MissingPackageError
from gradmix.mixing.gradmix import GradMix

try:
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback
except ImportError as error:
    raise MissingPackageError(
        "gradmix.lightning needs lightning; install it with: pip install lightning"
    ) from error


class GradMixCallback(Callback):
    """Mixes each training batch of inputs and labels, in place, before the training step.

    The data loader yields lists of inputs and labels, as PyTorch's default collation does, and the
    batches contain new and replayed samples. `training_step` gets mixed inputs and soft labels
    (B, C), which `cross_entropy` accepts. Call `begin_task` before `trainer.fit` of each task.

    Args:
        mixer: The mixer; None is `GradMix()`.
        model: The network whose last linear layer the criterion uses; None is the module that
            Lightning trains.
    """

    def __init__(self, mixer: GradMix | None = None, model: nn.Module | None = None) -> None:
        self.mixer = GradMix() if mixer is None else mixer
        self._model = model
        self._memory: tuple[Tensor, Tensor] | None = None
        self._current: tuple[Tensor, Tensor] | None = None

    def begin_task(
        self, *, memory: tuple[Tensor, Tensor] | None, current: tuple[Tensor, Tensor]
    ) -> None:
        """Set the data of a task; the arguments are those of `GradMix.refresh`."""
        self._memory, self._current = memory, current

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the harmful class pairs with the model as it is now.

        Raises:
            InputError: If `begin_task` was not called.
        """
        if self._current is None:
            raise InputError("call begin_task(memory=…, current=…) before trainer.fit")
        given = (self._memory, self._current)
        memory, current = move_data_to_device(given, pl_module.device)
        self.mixer.refresh(self._model or pl_module, memory=memory, current=current)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mix the batch in place.

        Raises:
            InputError: If the batch is not a list of inputs and labels.
        """
        if not isinstance(batch, list) or len(batch) < 2:
            raise InputError(
                f"batch is a {type(batch).__name__}; the data loader must yield lists "
                "[inputs, labels], as PyTorch's default collation does"
            )
        batch[0], batch[1] = self.mixer(batch[0], batch[1])
