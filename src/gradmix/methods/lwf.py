"""LwF, learning without forgetting: no memory; old outputs for new samples should not change.

Source: Li and Hoiem, "Learning without Forgetting", ECCV 2016; the form for class-incremental
learning follows LAMDA-CL/PyCIL. Other methods that distil derive from `WithOldNetwork`, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.criterion import find_head
from gradmix.data.pool import Pool
from gradmix.methods.components import Options
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft, distillation
from gradmix.types import MixedBatch


class WithOldNetwork(ER):
    """ER that keeps a frozen copy of the network from the second task on."""

    online = False
    other_networks = ("old",)
    old: nn.Module | None = None  # the copy, in evaluation mode; None in the first task
    old_classes = 0  # how many classes it knows: its first outputs

    def begin_task(self, pool: Pool, seen: int) -> None:
        """From the second task on, copy the network before it trains."""
        known = self.seen
        super().begin_task(pool, seen)
        if known:
            self.old, self.old_classes = self.frozen_copy(), known

    @torch.no_grad()
    def old_logits(self, mixed: MixedBatch) -> Tensor:
        """Return the old network's outputs of its classes for the same inputs, (B, old_classes)."""
        assert self.old is not None
        outputs: Tensor = self.old(mixed.x, mix=mixed.mix, at=mixed.at)
        return outputs[:, : self.old_classes]

    def distillation(self, outputs: Tensor, mixed: MixedBatch, temperature: float) -> Tensor:
        """Return the distillation loss of outputs (B, C) from the old network, on its classes."""
        return distillation(outputs[:, : self.old_classes], self.old_logits(mixed), temperature)

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
        self.old = self.frozen_copy() if self.old_classes else None


class DistilledOptions(Options):
    """The references' values."""

    temperature: Number = setting(2.0, "Temperature of the distillation.", gt=0)


class Distilled(WithOldNetwork):
    """(1 − μ) · CE + μ · distillation, with the share μ of old classes among all: WA and BiC."""

    needs_new_classes = True
    options: DistilledOptions = DistilledOptions()

    def train_step(self, step: int) -> Tensor:
        """Return the loss: in the first task CE alone; if no class is new, μ is 1/2."""
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        loss = self.class_loss(outputs, mixed.targets)
        if self.old is None:
            return loss
        share = self.old_classes / self.seen if self.old_classes < self.seen else 0.5
        kept = self.distillation(outputs, mixed, self.options.temperature)
        return (1 - share) * loss + share * kept


class LwFOptions(DistilledOptions):
    """The paper's values."""

    distill: Number = setting(1.0, "Weight of the distillation from the old network.", ge=0)


class LwF(WithOldNetwork):
    """Cross-entropy among the classes of the task, plus distillation of the old outputs.

    The paper has separate outputs per task; the cross-entropy of a task therefore leaves all other
    outputs out. The paper first trains the new outputs alone; this stage is omitted, as in PyCIL.

    Mixing: B1 is mixed within itself, and the old network sees the mixed input. There is no memory
    to protect, so gradient partners are refused.
    """

    options: LwFOptions = LwFOptions()
    replays = False

    def train_step(self, step: int) -> Tensor:
        """Return CE(classes of the task) + λ · distillation(old classes)."""
        mixed, classes = self.mixed_batch(step), self.mixer.classes
        outputs = self.logits(mixed)
        targets = as_soft(mixed.targets, outputs.shape[1])
        loss = self.cross_entropy(self.adjusted(outputs)[:, classes], targets[:, classes])
        if self.old is None:
            return loss
        kept = self.distillation(outputs, mixed, self.options.temperature)
        return loss + self.options.distill * kept
