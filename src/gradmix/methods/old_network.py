"""The network as it was before the current task, for methods that distil from it."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix.criterion import find_head
from gradmix.data.pool import Pool
from gradmix.methods.er import ER
from gradmix.methods.losses import distillation
from gradmix.types import MixedBatch


class WithOldNetwork(ER):
    """ER that keeps a frozen copy of the network from the second task on.

    Attributes:
        old: The copy, in evaluation mode; None in the first task.
        old_classes: How many classes it knows: its first outputs.
    """

    online: ClassVar[bool] = False
    other_networks: ClassVar[tuple[str, ...]] = ("old",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old: nn.Module | None = None
        self.old_classes = 0

    def begin_task(self, pool: Pool, seen: int) -> None:
        """From the second task on, copy the network before it trains."""
        known = self.seen
        super().begin_task(pool, seen)
        if known:
            self.old, self.old_classes = self._frozen_copy(), known

    def _frozen_copy(self) -> nn.Module:
        return copy.deepcopy(self.model).requires_grad_(False).eval()

    @torch.no_grad()
    def old_logits(self, mixed: MixedBatch) -> Tensor:
        """Return the old network's outputs of its classes for the same inputs, (B, old_classes)."""
        assert self.old is not None
        outputs: Tensor = self.old(mixed.x, mix=mixed.mix, at=mixed.at)
        return outputs[:, : self.old_classes]

    def distilled_loss(self, mixed: MixedBatch, temperature: float) -> Tensor:
        """Return (1 − μ) · CE + μ · distillation, with the share μ of old classes among all.

        Without an old network the loss is the cross-entropy. If no class is new, μ is 1/2.
        """
        outputs = self.logits(mixed)
        loss = self.class_loss(outputs, mixed.targets)
        if self.old is None:
            return loss
        share = self.old_classes / self.seen if self.old_classes < self.seen else 0.5
        known = outputs[:, : self.old_classes]
        return (1 - share) * loss + share * distillation(known, self.old_logits(mixed), temperature)

    def drop_outputs(self, label: int) -> None:
        """Remove the output from the old network, too."""
        super().drop_outputs(label)
        if self.old is not None:
            self.old.head = self.without_output(find_head(self.old), label)
            self.old_classes -= label < self.old_classes
            self.old = self.old if self.old_classes else None

    def structure(self) -> dict[str, Any]:
        """Add the number of classes that the old network knows."""
        return {**super().structure(), "old_classes": self.old_classes}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make an old network of the same shape, too."""
        super().rebuild(structure)
        self.old_classes = structure["old_classes"]
        self.old = self._frozen_copy() if self.old_classes else None
