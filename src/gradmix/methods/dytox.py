"""DyTox: one transformer for all tasks, and one token, embedding and head for each.

Source: Douillard et al., "DyTox: Transformers for Continual Learning with DYnamic TOken
eXpansion", CVPR 2022; reference code arthurdouillard/dytox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.methods.losses import as_soft, fold_old_classes, smooth_labels
from gradmix.methods.lwf import WithOldNetwork
from gradmix.methods.parts import ExtendsNetwork, Options, Stage
from gradmix.mixing.mixer import Plan
from gradmix.models.dytox import TaskTokenNetwork
from gradmix.models.heads import BlockLinear, grow_head
from gradmix.models.network import check_splittable


class DyToxOptions(Options):
    """The reference's values; the length and the learning rate of tuning are ratios."""

    divergence: Number = setting(0.1, "Weight of the new-versus-old loss.", ge=0)
    tuning: Number = setting(
        20 / 500, "Epochs of balanced tuning, as a multiple of the epochs.", gt=0
    )
    tuning_lr: Number = setting(0.1, "Learning rate of tuning, as a multiple of the lr.", gt=0)


class DyTox(ExtendsNetwork, WithOldNetwork):
    """Task tokens: every task has its own embedding of an input, made by one shared attention.

    Each class is a binary decision of its task's head. Training freezes the tokens and heads of
    old tasks, distils from the old network, and tells new classes from old ones by an auxiliary
    head (the divergence head). From the second task on, tuning trains everything except the
    backbone on classes in equal shares.

    It needs an adaptive optimizer, as transformers do: with plain SGD it hardly learns.

    Deviations: any network of gradmix can be the backbone. The positions of its last feature map
    are the patches; the blocks of a ViT have plain self-attention, without the gated positions of
    the reference. Tuning draws new classes from all their samples, and not only from those that
    the memory will keep. There is no stochastic depth. A task without new classes trains the
    newest token.

    Mixing: soft labels in all losses; distillation passes the mixed input through both networks.
    Criterion: the embedding concatenates the normalised embeddings of all tasks, and the head is
    block-diagonal. Gradients have the softmax form, although the loss is binary.
    """

    softmax: ClassVar[bool] = False
    options_type: ClassVar[type[Options]] = DyToxOptions
    options: DyToxOptions
    model: TaskTokenNetwork

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(check_splittable(model, "DyTox"), *args, **kwargs)
        backbone = check_splittable(self.model, "DyTox")
        self.model = TaskTokenNetwork(backbone, self.streams.generator("heads"))

    def grow(self, seen: int) -> None:
        """Add a token and a head for new classes; for the first ones there are both."""
        generator, head = self.streams.generator("heads"), self.model.head
        if self.seen == 0:
            self.model.head = BlockLinear([grow_head(head.layers[0], seen, generator=generator)])
        elif seen > self.seen:
            self.model.add_task(seen - self.seen, generator)

    # --- stages -----------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """Return training and, from the second task on, tuning."""
        epochs = self.settings.epochs
        if len(self.model.tokens) == 1:
            return [Stage("train", epochs)]
        shorter = max(1, round(epochs * self.options.tuning))
        return [Stage("train", epochs), Stage("tuning", shorter)]

    @property
    def is_tuning(self) -> bool:
        """Whether the current stage is tuning."""
        return self.stage.name == "tuning"

    def train_mode(self) -> None:
        """Put the network in training mode; the backbone rests while the heads are tuned."""
        self.model.train()
        if self.is_tuning:
            self.model.backbone.eval()

    def parameters(self) -> list[nn.Parameter]:
        """Return what the current stage trains."""
        return self.model.trained(tuning=self.is_tuning)

    def learning_rates(self, epoch: int, steps: int) -> list[float]:
        """Return the learning rate of each step; it is constant in tuning."""
        if self.is_tuning:
            return [self.settings.lr * self.options.tuning_lr] * steps
        return super().learning_rates(epoch, steps)

    def epoch_samples(self) -> int:
        """Return how many samples an epoch covers; in tuning as many as a full memory has."""
        if not self.is_tuning:
            return super().epoch_samples()
        fair = int(self.memory.y.bincount().max()) * self.seen
        return min(fair, self.pool.num_new)

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Join new and replayed samples; in tuning draw as many with classes in equal shares."""
        if not self.is_tuning:
            return super().plan_epoch(new)
        index = ClassIndex(self.pool.y, self.seen)
        shape = (len(new), new.shape[1] + self.replay_size)
        rows = index.draw_balanced(shape, self.streams.device("replay"))
        return self.mixer.plan(rows, self.selector.pairs)

    # --- the loss ---------------------------------------------------------------------------

    def train_step(self, step: int) -> Tensor:
        """Return BCE, weighted against the distillation, and the divergence loss."""
        net, mixed, smoothing = self.model, self.mixed_batch(step), self.settings.label_smoothing
        with torch.set_grad_enabled(not self.is_tuning):
            patches = net.backbone.tokens(mixed.x, mixed.mix, mixed.at)
        embeddings = net.embeddings(patches)
        logits = net.classify(embeddings)
        targets = as_soft(mixed.targets, self.seen).to(logits.dtype)
        loss = F.binary_cross_entropy_with_logits(logits, smooth_labels(targets, smoothing))
        if self.is_tuning or net.divergence is None:
            return loss
        if self.old is not None and self.old_classes < self.seen:
            share = self.old_classes / self.seen
            distance = divergence(logits[:, : self.old_classes], self.old_logits(mixed))
            loss = (1 - share) * loss + share * distance
        outputs: Tensor = net.divergence(embeddings[-1])
        old = self.seen - (outputs.shape[1] - 1)
        folded = smooth_labels(fold_old_classes(targets, old), smoothing)
        auxiliary = F.binary_cross_entropy_with_logits(outputs, folded)
        return loss + self.options.divergence * auxiliary

    # --- state ------------------------------------------------------------------------------

    def drop_outputs(self, label: int) -> None:
        """Remove the class from the network; the next task makes a new old network."""
        self.model.drop_output(label)
        self.old, self.old_classes = None, 0

    def structure(self) -> dict[str, Any]:
        """Add the number of classes of each task and the outputs of the divergence head."""
        sizes = self.model.sizes()
        return {
            **super().structure(),
            "tasks": len(sizes),
            **{f"classes_{task}": size for task, size in enumerate(sizes)},
            "divergence": self.model.divergence is not None,
        }

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make tokens and heads of the saved number and shape."""
        sizes = [structure.get(f"classes_{task}", 0) for task in range(structure["tasks"])]
        if not sizes or min(sizes) < 1 or sum(sizes) != structure["outputs"]:
            raise InputError(f"structure: {sizes} classes do not make {structure['outputs']}")
        self.model.reshape(sizes, self.streams.generator("heads"))
        if not structure["divergence"]:
            self.model.divergence = None
        super().rebuild(structure)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of softmax outputs, averaged over rows and outputs."""
    wanted, found = teacher.log_softmax(dim=1), student.log_softmax(dim=1)
    return (wanted.exp() * (wanted - found)).mean()
