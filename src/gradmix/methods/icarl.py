"""iCaRL: herded exemplars, distillation by sigmoid outputs, nearest mean of exemplars.

Source: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017;
reference forms in aimagelab/mammoth (loss) and G-U-N/PyCIL (herding).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion import embed, find_head
from gradmix.memory import herding_ranks
from gradmix.methods.base import Method, Stage
from gradmix.types import MixedBatch, Samples


class ICaRL(Method):
    """Binary cross-entropy on every output; old outputs are to stay what they were.

    New samples and exemplars share each batch. Predictions go to the class whose exemplars'
    mean embedding is nearest; what the trained outputs say is reported beside them, as "head".

    Mixing: soft labels for the new classes' outputs; old ones' targets are the old network's
    answers to the mixed input. Criterion: the trained head, with the softmax form of its
    gradients although the loss is binary and predictions go by means.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old: nn.Module | None = None  # the network as the last task left it
        self.old_classes = 0
        self._means: tuple[Tensor, Tensor] | None = None  # classes (K,) and means (K, d)

    def begin_stage(self, stage: Stage) -> None:
        """From the second task on, remember the network as it is."""
        if len(self.memory):
            self.old = copy.deepcopy(self.model).requires_grad_(False).eval()
            self.old_classes = int(self.memory.y.max()) + 1
        super().begin_stage(stage)

    def train_step(self, step: int) -> Tensor:
        """Labels for new outputs, the old network's answers for old ones."""
        self._means = None
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        targets = mixed.targets
        if targets.ndim == 1:
            targets = F.one_hot(targets, outputs.shape[1])
        targets = targets.to(outputs.dtype)
        if self.old is not None:
            known = self.old_classes
            targets = torch.cat([self.old_answers(mixed)[:, :known], targets[:, known:]], dim=1)
        return F.binary_cross_entropy_with_logits(outputs, targets)

    @torch.no_grad()
    def old_answers(self, mixed: MixedBatch) -> Tensor:
        """What the old network says to the same inputs."""
        assert self.old is not None
        answers: Tensor = self.old(mixed.x, mix=mixed.mix, at=mixed.at).sigmoid()
        return answers

    def end_task(self, new: Samples) -> None:
        """Herd exemplars of every new class; class means are taken anew at the next prediction.

        The more of a class was in a task, the more of its exemplars are from there.
        """
        self._means = None
        index = torch.arange(len(new.y), device=new.y.device)
        features = embed(self.model, self.head, self.pool.images(index), new.y).embeddings
        ranks = torch.empty(len(new.y), dtype=torch.float64, device=new.y.device)
        classes = new.y.unique()
        quota = self.memory.quota(torch.cat([self.memory.y.unique(), classes]).unique())
        for label in classes.tolist():
            rows = new.y == label
            ranks[rows] = herding_ranks(features[rows], int(quota[label]))
            ranks[rows] = (ranks[rows] + 0.5) / len(features[rows])  # as a share of the class
        self.memory.add(new, ranks)

    def class_means(self) -> tuple[Tensor, Tensor]:
        """The classes in memory and the normalised means of their normalised embeddings."""
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
        """Minus the squared distance to each class mean; before the first task the head's word."""
        if not len(self.memory):
            return super().predict(x)
        classes, means = self.class_means()
        seen = embed(self.model, self.head, x, classes[:1].expand(len(x)))
        features = F.normalize(seen.embeddings, dim=1)
        scores = features.new_full((len(x), self.head.out_features), -torch.inf)
        scores[:, classes] = -torch.cdist(features, means).square()
        return scores

    def drop_outputs(self, label: int) -> None:
        """In the old network, too."""
        super().drop_outputs(label)
        self._means = None
        if self.old is not None:
            self.old.head = self.without_output(find_head(self.old), label)
            self.old_classes -= label < self.old_classes
            self.old = self.old if self.old_classes else None

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Nearest means, and the head."""
        return {"main": self.predict, "head": super().predict}

    def networks(self) -> dict[str, nn.Module]:
        """With the old network, once there is one."""
        return super().networks() | ({} if self.old is None else {"old": self.old})

    def structure(self) -> dict[str, Any]:
        """With the number of classes that the old network knows."""
        return {**super().structure(), "old_classes": self.old_classes}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """With an old network of the shape it has."""
        super().rebuild(structure)
        self.old_classes, self._means = structure["old_classes"], None
        self.old = None
        if self.old_classes:
            self.old = copy.deepcopy(self.model).requires_grad_(False).eval()
