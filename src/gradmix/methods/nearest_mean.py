"""iCaRL and SCR: a prediction is the class whose exemplars have the nearest mean embedding.

Sources: Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", CVPR 2017,
reference forms in aimagelab/mammoth (loss) and G-U-N/PyCIL (herding); Mai et al., "Supervised
Contrastive Replay: Revisiting the Nearest Class Mean Classifier in Online Class-Incremental
Continual Learning" (SCR), CVPR Workshops 2021, reference code RaptorMai/online-continual-learning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.criterion import embed
from gradmix.data.augment import second_view
from gradmix.errors import InputError
from gradmix.methods.distillation import WithOldNetwork
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft, smooth_labels
from gradmix.methods.parts import Options
from gradmix.models.adapt import Adapted
from gradmix.models.finetune import FineTuned
from gradmix.models.network import Network, new_linear
from gradmix.types import MixedBatch, Samples

PROJECTION = 128  # length of the projections that SCR's loss compares


class NearestMean(ER):
    """A prediction is the class whose exemplars have the nearest mean embedding.

    The predictions of the trained head are reported as "head".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._means: tuple[Tensor, Tensor] | None = None  # classes (K,) and means (K, d)

    def mixed_batch(self, step: int) -> MixedBatch:
        """Return the batch of a step; the next prediction computes class means again."""
        self._means = None
        return super().mixed_batch(step)

    def end_task(self, new: Samples) -> None:
        """Store exemplars; the next prediction computes class means again."""
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
            f"{type(self).__name__} predicts by the means of its exemplars; export another method"
        )

    def drop_samples(self) -> None:
        """Raise InputError: predictions use the exemplars."""
        raise InputError(
            f"{type(self).__name__} predicts by the means of its exemplars and needs them; give "
            "include_exemplars=True, or learn with another method"
        )

    def drop_outputs(self, label: int) -> None:
        """Remove an output; the next prediction computes class means again."""
        super().drop_outputs(label)
        self._means = None

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Add the trained head."""
        return {"main": self.predict, "head": super().predict}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Forget the class means, too."""
        super().rebuild(structure)
        self._means = None


class ICaRL(NearestMean, WithOldNetwork):
    """Binary cross-entropy on every output; old outputs are distilled from the old network.

    New samples and exemplars share each batch.

    Mixing: soft labels for the outputs of new classes; the targets of old classes are the old
    network's answers to the mixed input. Criterion: the trained head, with the softmax form of its
    gradients, although the loss is binary and predictions use means.
    """

    needs_new_classes: ClassVar[bool] = True
    softmax: ClassVar[bool] = False
    selection: ClassVar[str | None] = "herding"

    def train_step(self, step: int) -> Tensor:
        """Return the binary cross-entropy: labels for new outputs, old answers for old ones."""
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        targets = as_soft(mixed.targets, outputs.shape[1]).to(outputs.dtype)
        targets = smooth_labels(targets, self.settings.label_smoothing)
        if self.old is not None:
            answers = self.old_logits(mixed).sigmoid()
            targets = torch.cat([answers, targets[:, self.old_classes :]], dim=1)
        return F.binary_cross_entropy_with_logits(outputs, targets)


class SCROptions(Options):
    """The reference's values."""

    temperature: Number = setting(0.07, "Temperature of the contrastive loss.", gt=0)
    crop: Number = setting(0.2, "Smallest share of an image in its second view.", gt=0, le=1)


class SCR(NearestMean):
    """A contrastive loss on two views of B1 ∪ B2; a prediction is the nearest mean of exemplars.

    The loss makes projections of samples with one label similar. The projector is a small network
    on the embedding, which only the loss uses. Class means are means of embeddings.

    Choices where the reference does not fit: the first task trains on B1 alone, because the memory
    is filled at its end. (The reference trains only when the memory has samples.) Images with one
    channel are not mirrored. The second view of rows of numbers is the rows with some noise.

    Mixing: the second view shows the mixed images. Two samples are as similar as their soft labels:
    the weight of a pair is the product y_i · y_j in place of 0 or 1. Criterion: a linear head that
    learns from the embeddings without changing them, reported as "head".
    """

    row_wise: ClassVar[bool] = False  # each row is compared with all others
    options_type: ClassVar[type[Options]] = SCROptions
    options: SCROptions
    other_networks: ClassVar[tuple[str, ...]] = ("projector",)
    model: Network | Adapted | FineTuned

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size, generator = self.head.in_features, self.streams.generator("projector")
        kind: dict[str, Any] = {"generator": generator, "device": self.head.weight.device}
        self.projector = nn.Sequential(
            new_linear(size, size, **kind), nn.ReLU(), new_linear(size, PROJECTION, **kind)
        )

    def parameters(self) -> list[nn.Parameter]:
        """Add the projector."""
        return [*super().parameters(), *self.projector.parameters()]

    def train_step(self, step: int) -> Tensor:
        """Return the contrastive loss of two views, plus the cross-entropy of the linear head."""
        mixed = self.mixed_batch(step)
        generator = self.streams.device("views")
        other = second_view(
            mixed.x, self.normalise, smallest=self.options.crop, generator=generator
        )
        one, two = (self.model.features(x, mixed.mix, mixed.at) for x in (mixed.x, other))
        projected = F.normalize(self.projector(torch.cat([one, two])), dim=1)
        soft = as_soft(mixed.targets, self.head.out_features)
        soft = smooth_labels(soft, self.settings.label_smoothing)
        loss = supervised_contrast(projected, soft.repeat(2, 1), self.options.temperature)
        return loss + self.class_loss(self.head(one.detach()), mixed.targets)


def supervised_contrast(projected: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss (Khosla et al., NeurIPS 2020) with soft labels (n, C).

    For each row of length 1, (n, p), the softmax runs over the similarities with all other rows.
    The loss is minus the mean of its logarithms, weighted by the products of the labels.
    """
    own = torch.eye(len(projected), dtype=torch.bool, device=projected.device)
    similar = (projected @ projected.T / temperature).masked_fill(own, -torch.inf)
    logarithms = similar.log_softmax(dim=1).masked_fill(own, 0.0)
    weights = (targets @ targets.T).masked_fill(own, 0.0)
    return -((weights * logarithms).sum(dim=1) / weights.sum(dim=1)).mean()
