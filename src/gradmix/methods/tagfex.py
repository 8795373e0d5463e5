"""TagFex: task-specific networks learn from a task-agnostic one that sees no labels.

Source: Zheng et al., "Task-Agnostic Guided Feature Expansion for Class-Incremental Learning",
CVPR 2025; reference code bwnzheng/TagFex_CVPR2025.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.methods.losses import as_soft, contrast
from gradmix.methods.memo import Expanding, ExpandingOptions
from gradmix.methods.parts import Options
from gradmix.models.heads import drop_output, grow_head
from gradmix.models.network import check_splittable
from gradmix.models.tagfex import Seen, TagFexNetwork

TEMPERATURE = 0.2  # of both contrastive losses
TRANSFER_TEMPERATURE = 2.0


class TagFexOptions(ExpandingOptions):
    """The reference's values, except for `align`; see MEMO."""

    auxiliary: Number = setting(2.0, "Weight of the new-versus-old loss.", ge=0)
    contrast: Number = setting(1.0, "Weight of the contrastive loss of two views.", ge=0)
    distill: Number = setting(2.0, "Weight of the distillation of task-agnostic features.", ge=0)
    transfer: Number = setting(1.0, "Weight of the transfer to the newest network.", ge=0)


class TagFex(Expanding):
    """A new network per task, and one task-agnostic network that guides it.

    The task-agnostic network learns to recognise a second view of each sample (InfoNCE) and to
    keep the features that it had (InfoNCE with its frozen copy). An attention merges its tokens
    with the newest network's. The merged features classify the new classes, and the newest
    network learns their answers while they are better than its own.

    Deviations: exemplars are random unless `exemplar_selection` says otherwise; new classes'
    weights are aligned only with `align=1`; each view passes the networks by itself, so BatchNorm
    sees one view at a time; networks without a feature map have one token. Without random
    transforms both views are the same, and the contrastive loss only spreads the samples.
    A task without new classes continues to train the newest network.

    Mixing: both views have the same partners and λ. The auxiliary loss folds the shares of old
    classes into one. Rows count in the merged losses by their share of new classes.
    Criterion: the embedding concatenates those of all task-specific networks.
    """

    row_wise: ClassVar[bool] = False  # each row is compared with all others
    options_type: ClassVar[type[Options]] = TagFexOptions
    options: TagFexOptions
    model: TagFexNetwork  # type: ignore[assignment]

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(check_splittable(model, "TagFex"), *args, **kwargs)
        first = check_splittable(self.model, "TagFex")
        self.model = TagFexNetwork(first, self.streams.generator("heads"))

    def grow(self, seen: int) -> None:
        """Add a task-specific network for new classes; for the first ones there is one."""
        generator = self.streams.generator("heads")
        if self.seen == 0:
            self.model.head = grow_head(self.head, seen, generator=generator)
        elif seen > self.seen:
            self.model.add_specific(seen, seen - self.seen, generator)

    def views(self, step: int) -> tuple[Seen, Tensor]:
        """Return what the networks see of both views of a batch, and soft labels, (2 B, C)."""
        mixed = self.mixed_batch(step)
        first = self.model.observe(mixed)
        second = self.model.observe(self.mixed_batch(step)) if self.pool.random_views else first
        both = (torch.cat(pair) for pair in zip(first, second, strict=True))
        return Seen(*both), as_soft(mixed.targets, self.seen).repeat(2, 1)

    def train_step(self, step: int) -> Tensor:
        """Return CE + InfoNCE, and the losses that a second task adds."""
        net, options = self.model, self.options
        seen, targets = self.views(step)
        logits = net.head(seen.embeddings)
        loss = self.class_loss(logits, targets)
        projected = net.projector(seen.general)
        spread = options.contrast * contrast(projected, projected, TEMPERATURE)
        if net.auxiliary is None:
            return loss + spread
        assert net.predictor is not None
        assert net.old_projector is not None
        now = net.old_projector(net.predictor(seen.general))  # as features of the last task
        share = (self.seen - (net.auxiliary.out_features - 1)) / self.seen  # of old classes
        return (
            loss
            + self.auxiliary_loss(net.auxiliary, seen.newest, targets)
            + (1 - share) * spread
            + share * options.distill * contrast(now, net.old_projector(seen.before), TEMPERATURE)
            + self.merged(seen, logits, targets, loss)
        )

    def merged(self, seen: Seen, logits: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """Return the cross-entropy of the merged features, and the transfer to the network.

        Both cover the new classes only. The transfer counts if the merged features have a lower
        cross-entropy than the network.
        """
        net = self.model
        if net.merge is None or net.merged_head is None:
            return loss.new_zeros(())
        merged: Tensor = net.merged_head(net.merge(seen.agnostic.detach(), seen.specific))
        new = targets[:, -merged.shape[1] :]
        shares = new.sum(dim=1, keepdim=True)  # (2 B, 1) share of new classes
        number = shares.sum().clamp(min=1)
        own = -(new * merged.log_softmax(dim=1)).sum() / number
        teacher, student = (
            (part / TRANSFER_TEMPERATURE).log_softmax(dim=1)
            for part in (merged.detach(), logits[:, -merged.shape[1] :])
        )
        transfer = (shares * teacher.exp() * (teacher - student)).sum() / number
        return own + self.options.transfer * (own < loss) * transfer

    def drop_outputs(self, label: int) -> None:
        """Remove the output from the merged head, too, if it has one for this class."""
        super().drop_outputs(label)
        net = self.model
        if net.merged_head is None:
            return
        own = label - (self.seen - net.merged_head.out_features)
        if own >= 0 and net.merged_head.out_features == 1:
            net.merge = net.merged_head = None
        elif own >= 0:
            net.merged_head = drop_output(net.merged_head, own)

    def parts(self) -> dict[str, int]:
        """Return the number of task-specific networks."""
        return {"specifics": len(self.model.specifics)}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make networks and heads of the saved number and shape."""
        net, generator = self.model, self.streams.generator("heads")
        while len(net.specifics) < structure["specifics"]:
            net.add_specific(self.head.out_features, 1, generator)
        net.head = grow_head(self.head, structure["outputs"], generator=generator)
        if structure["auxiliary"]:
            net.add_heads(structure["auxiliary"] - 1, generator)
        self.seen = structure["seen"]
