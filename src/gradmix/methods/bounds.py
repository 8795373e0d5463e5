"""The bounds of every comparison: fine-tuning without replay, and joint training on all data."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from gradmix.criterion import find_head
from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.er import ER
from gradmix.models.heads import drop_output
from gradmix.models.weights import load_weights
from gradmix.types import Samples


class FineTuning(ER):
    """Trains on the new data alone: the memory stays empty.

    Mixing: B1 is mixed within itself. There is no memory to protect, so gradient partners have no
    meaning and are refused.
    """

    replays = False


class FromScratch(ER):
    """Starts every task from the initial weights; the base of joint training and GDumb."""

    replays = False
    online = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._initial = copy.deepcopy(self.model)

    @classmethod
    def learns_stored(cls) -> bool:
        """Return True: a new network knows nothing of earlier tasks."""
        return True

    def grow(self, seen: int) -> None:
        """Start again from the initial weights; new rows of a growing head are drawn again."""
        self.model = copy.deepcopy(self._initial)
        super().grow(seen)

    def drop_outputs(self, label: int) -> None:
        """Remove an output; the initial head has no more outputs than the head."""
        super().drop_outputs(label)
        head = find_head(self._initial)
        if head.out_features > self.head.out_features:
            self._initial.head = drop_output(head, head.out_features - 1)

    def state_dict(self) -> dict[str, Any]:
        """Add the initial weights."""
        return {**super().state_dict(), "initial": self._initial.state_dict()}

    def structure(self) -> dict[str, Any]:
        """Add the outputs of the initial head."""
        return {**super().structure(), "initial": find_head(self._initial).out_features}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Give the initial head its saved shape, too."""
        super().rebuild(structure)
        head, outputs = find_head(self._initial), structure["initial"]
        if head.out_features != outputs:
            self._initial.head = self.new_layer(head.in_features, outputs, head.bias is not None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the initial weights, which may differ from those this object started with."""
        super().load_state_dict(state)
        try:
            load_weights(self._initial, state["initial"])
        except InputError as error:
            raise InputError(f"initial: {error}") from error


class Joint(FromScratch):
    """Trains from scratch on everything seen, at every task.

    It stores all data and ignores the budget of the memory.

    Mixing: as in ordinary training, within batches of all classes. Nothing is forgotten, so
    gradient partners have no meaning and are refused.
    """

    _stored: Samples | None = None

    def stored_samples(self) -> Samples:
        """Return everything seen."""
        return super().stored_samples() if self._stored is None else self._stored

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task; it must fit in memory."""
        if pool.streamed:
            raise InputError(
                "method is 'joint', which keeps all data in memory; these are streamed from files"
            )
        super().set_pool(pool)

    def epoch_samples(self) -> int:
        """An epoch covers the whole pool."""
        return len(self.pool)

    def class_shares(self) -> Tensor:
        """Return the shares among all samples."""
        return self.shares_of(self.pool.num_new, len(self.pool) - self.pool.num_new)

    def end_task(self, new: Samples) -> None:
        """Store all samples."""
        old = self._stored
        if old is not None:
            new = Samples(torch.cat([old.x, new.x]), torch.cat([old.y, new.y]))
        self._stored = new

    def forget(self, label: int) -> None:
        """Remove a class and its data; the initial weights never saw any data."""
        super().forget(label)
        x, y = self.stored_samples()
        kept = y != label
        self._stored = Samples(x[kept], y[kept] - (y[kept] > label).long())

    def drop_samples(self) -> None:
        """Remove all data seen, too."""
        super().drop_samples()
        self._stored = None

    def state_dict(self) -> dict[str, Any]:
        """Add the data seen."""
        return {**super().state_dict(), "kept": self.stored_samples()._asdict()}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the data seen."""
        super().load_memory(state)
        stored = Samples(state["kept"]["x"], state["kept"]["y"])
        self.check_labels(stored.y)
        self._stored = stored if len(stored.y) else None
