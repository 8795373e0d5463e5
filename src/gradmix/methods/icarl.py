"""iCaRL: herded exemplars, distillation of sigmoid outputs, nearest mean of exemplars.

Source: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017;
reference forms in aimagelab/mammoth (loss) and G-U-N/PyCIL (herding).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion import embed, find_head
from gradmix.errors import InputError
from gradmix.methods.base import Stage
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft
from gradmix.types import MixedBatch, Samples


class ICaRL(ER):
    """Binary cross-entropy on every output; old outputs are distilled from the old network.

    New samples and exemplars share each batch. A prediction is the class whose exemplars have the
    nearest mean embedding. The predictions of the trained head are reported as "head".

    Mixing: soft labels for the outputs of new classes; the targets of old classes are the old
    network's answers to the mixed input. Criterion: the trained head, with the softmax form of its
    gradients, although the loss is binary and predictions use means.
    """

    needs_new_classes: ClassVar[bool] = True
    selection: ClassVar[str | None] = "herding"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old: nn.Module | None = None  # the network at the end of the previous task
        self.old_classes = 0
        self._means: tuple[Tensor, Tensor] | None = None  # classes (K,) and means (K, d)

    def begin_stage(self, stage: Stage) -> None:
        """From the second task on, keep a frozen copy of the network."""
        if len(self.memory):
            self.old = copy.deepcopy(self.model).requires_grad_(False).eval()
            self.old_classes = int(self.memory.y.max()) + 1
        super().begin_stage(stage)

    def train_step(self, step: int) -> Tensor:
        """Return the binary cross-entropy: labels for new outputs, old answers for old ones."""
        self._means = None
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        targets = as_soft(mixed.targets, outputs.shape[1]).to(outputs.dtype)
        smoothing = self.settings.label_smoothing
        targets = targets * (1 - smoothing) + smoothing / targets.shape[1]
        if self.old is not None:
            known = self.old_classes
            targets = torch.cat([self.old_answers(mixed)[:, :known], targets[:, known:]], dim=1)
        return F.binary_cross_entropy_with_logits(outputs, targets)

    @torch.no_grad()
    def old_answers(self, mixed: MixedBatch) -> Tensor:
        """Return the old network's answers to the same inputs, (B, C)."""
        assert self.old is not None
        answers: Tensor = self.old(mixed.x, mix=mixed.mix, at=mixed.at).sigmoid()
        return answers

    def end_task(self, new: Samples) -> None:
        """Herd exemplars of every new class; the next prediction computes class means again."""
        self._means = None
        super().end_task(new)

    def class_means(self) -> tuple[Tensor, Tensor]:
        """Return the classes in memory, (K,), and the means of their embeddings, (K, d).

        Embeddings and means have length 1.
        """
        if self._means is None:
            x, y = self.memory.samples
            seen = embed(self.model, self.head, self.normalise(x), y)
            features = F.normalize(seen.embeddings, dim=1)
            classes = y.unique()
            means = torch.stack([features[y == label].mean(dim=0) for label in classes])
            self._means = classes, F.normalize(means, dim=1)
        return self._means

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return minus the squared distance to each class mean; the head's scores before task 1."""
        if not len(self.memory):
            return super().predict(x)
        classes, means = self.class_means()
        seen = embed(self.model, self.head, x, classes[:1].expand(len(x)))
        features = F.normalize(seen.embeddings, dim=1)
        scores = features.new_full((len(x), self.head.out_features), -torch.inf)
        scores[:, classes] = -torch.cdist(features, means).square()
        return scores

    def predictor_module(self) -> nn.Module:
        """Raise InputError: predictions use class means, not the network's head."""
        raise InputError(
            "method is 'icarl', which predicts by the means of its exemplars; export another method"
        )

    def drop_outputs(self, label: int) -> None:
        """Remove the output from the old network, too."""
        super().drop_outputs(label)
        self._means = None
        if self.old is not None:
            self.old.head = self.without_output(find_head(self.old), label)
            self.old_classes -= label < self.old_classes
            self.old = self.old if self.old_classes else None

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Add the trained head."""
        return {"main": self.predict, "head": super().predict}

    def networks(self) -> dict[str, nn.Module]:
        """Add the old network, once there is one."""
        return super().networks() | ({} if self.old is None else {"old": self.old})

    def structure(self) -> dict[str, Any]:
        """Add the number of classes that the old network knows."""
        return {**super().structure(), "old_classes": self.old_classes}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make an old network of the same shape, too."""
        super().rebuild(structure)
        self.old_classes, self._means = structure["old_classes"], None
        self.old = None
        if self.old_classes:
            self.old = copy.deepcopy(self.model).requires_grad_(False).eval()
