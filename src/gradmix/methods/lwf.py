"""LwF, learning without forgetting: no memory; old outputs for new samples should not change.

Source: Li and Hoiem, "Learning without Forgetting", ECCV 2016; the form for class-incremental
learning follows LAMDA-CL/PyCIL.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from gradmix._setting_types import Number, setting
from gradmix.methods.losses import as_soft, distillation
from gradmix.methods.old_network import WithOldNetwork
from gradmix.methods.parts import Options


class LwFOptions(Options):
    """The paper's values."""

    distill: Number = setting(1.0, "Weight of the distillation from the old network.", ge=0)
    temperature: Number = setting(2.0, "Temperature of the distillation.", gt=0)


class LwF(WithOldNetwork):
    """Cross-entropy among the classes of the task, plus distillation of the old outputs.

    The paper has separate outputs per task; the cross-entropy of a task therefore leaves all other
    outputs out. The paper first trains the new outputs alone; this stage is omitted, as in PyCIL.

    Mixing: B1 is mixed within itself, and the old network sees the mixed input. There is no memory
    to protect, so gradient partners are refused.
    """

    options_type: ClassVar[type[Options]] = LwFOptions
    options: LwFOptions
    replays: ClassVar[bool] = False
    selection: ClassVar[str | None] = None

    def train_step(self, step: int) -> Tensor:
        """Return CE(classes of the task) + λ · distillation(old classes)."""
        mixed, classes = self.mixed_batch(step), self.mixer.classes
        outputs = self.logits(mixed)
        targets = as_soft(mixed.targets, outputs.shape[1])
        loss = self.cross_entropy(self.adjusted(outputs)[:, classes], targets[:, classes])
        if self.old is None:
            return loss
        known = outputs[:, : self.old_classes]
        kept = distillation(known, self.old_logits(mixed), self.options.temperature)
        return loss + self.options.distill * kept
