"""Joint training on all data seen: the upper bound of every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.from_scratch import FromScratch
from gradmix.types import Samples


class Joint(FromScratch):
    """Trains from scratch on everything seen, at every task.

    It stores all data and ignores the budget of the memory.

    Mixing: as in ordinary training, within batches of all classes. Nothing is forgotten, so
    gradient partners have no meaning and are refused.
    """

    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None
    online: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored: list[Samples] = []

    def stored_samples(self) -> Samples:
        """Return everything seen."""
        if not self._stored:
            return super().stored_samples()
        return Samples(*(torch.cat(parts) for parts in zip(*self._stored, strict=True)))

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
        self._stored.append(new)

    def forget(self, label: int) -> None:
        """Remove a class and its data; the initial weights never saw any data."""
        super().forget(label)
        x, y = self.stored_samples()
        kept = y != label
        self._stored = [Samples(x[kept], y[kept] - (y[kept] > label).long())]

    def drop_samples(self) -> None:
        """Remove all data seen, too."""
        super().drop_samples()
        self._stored = []

    # --- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Add the data seen."""
        x, y = self.stored_samples()
        return {**super().state_dict(), "kept": {"x": x, "y": y}}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the data seen."""
        super().load_memory(state)
        stored = Samples(state["kept"]["x"], state["kept"]["y"])
        self.check_labels(stored.y)
        self._stored = [stored] if len(stored.y) else []
