"""iCaRL: herded exemplars, distillation of sigmoid outputs, nearest mean of exemplars.

Source: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017;
reference forms in aimagelab/mammoth (loss) and G-U-N/PyCIL (herding).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion import embed
from gradmix.errors import InputError
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft
from gradmix.methods.lwf import WithOldNetwork
from gradmix.types import MixedBatch


class NearestMean(ER):
    """A prediction is the class whose exemplars have the nearest mean embedding.

    The predictions of the trained head are reported as "head".
    """

    _means: tuple[Tensor, Tensor] | None = None  # classes (K,) and means (K, d)
    _means_of: Tensor | None = None  # the memory's labels that they were computed from

    def mixed_batch(self, step: int) -> MixedBatch:
        """Return the batch of a step; the next prediction computes class means again."""
        self._means = None
        return super().mixed_batch(step)

    def class_means(self) -> tuple[Tensor, Tensor]:
        """Return the classes in memory, (K,), and the means of their embeddings, (K, d).

        Embeddings and means have length 1.
        """
        x, y = self.memory.samples
        if self._means is None or self._means_of is not y:  # the memory has changed
            seen = embed(self.model, self.head, self.normalise(x), y)
            features = F.normalize(seen.embeddings, dim=1)
            classes = y.unique()
            means = torch.stack([features[y == label].mean(dim=0) for label in classes])
            self._means, self._means_of = (classes, F.normalize(means, dim=1)), y
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
            f"{type(self).__name__} predicts by the means of its exemplars; export another method"
        )

    def drop_samples(self) -> None:
        """Raise InputError: predictions use the exemplars."""
        raise InputError(
            f"{type(self).__name__} predicts by the means of its exemplars and needs them; give "
            "include_exemplars=True, or learn with another method"
        )

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Add the trained head."""
        return {"main": self.predict, "head": super().predict}


class ICaRL(NearestMean, WithOldNetwork):
    """Binary cross-entropy on every output; old outputs are distilled from the old network.

    New samples and exemplars share each batch.

    Mixing: soft labels for the outputs of new classes; the targets of old classes are the old
    network's answers to the mixed input. Criterion: the trained head, with the softmax form of its
    gradients, although the loss is binary and predictions use means.
    """

    needs_new_classes = True
    softmax = False
    selection = "herding"

    def train_step(self, step: int) -> Tensor:
        """Return the binary cross-entropy: labels for new outputs, old answers for old ones."""
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        targets = self.smoothed(as_soft(mixed.targets, outputs.shape[1]).to(outputs.dtype))
        if self.old is not None:
            answers = self.old_logits(mixed).sigmoid()
            targets = torch.cat([answers, targets[:, self.old_classes :]], dim=1)
        return F.binary_cross_entropy_with_logits(outputs, targets)
