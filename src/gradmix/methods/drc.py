"""DRC: dynamic residual classifiers; branches for old and new classes that are merged and fused.

Source: Chen and Chang, "Dynamic Residual Classifier for Class Incremental Learning", ICCV 2023,
with model adaptation and fusion (MAFDRC); reference code chen-xw/DRC-CIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.errors import InputError
from gradmix.methods.components import Options, Stage
from gradmix.methods.er import ExtendsNetwork
from gradmix.methods.losses import as_soft, distillation
from gradmix.mixing.plan import Plan
from gradmix.models.network import Mix, Network, remove_head
from gradmix.types import MixedBatch, Samples


class DRCOptions(Options):
    """The reference's values; it adapts for 70 of 200 epochs."""

    adaptation: Number = setting(0.35, "Share of the epochs for new data alone.", gt=0, lt=1)
    branches: Number = setting(0.2, "Weight of the loss of single branches.", ge=0, le=1)
    distill_old: Number = setting(4.0, "Weight of the distillation from the old network.", ge=0)
    distill_new: Number = setting(1.0, "Weight of the distillation from the adapted one.", ge=0)
    temperature: Number = setting(2.0, "Temperature of both distillations.", gt=0)
    prior: Number = setting(1.2, "Logit adjustment τ in fusion, if the setting is 0.", ge=0)


class TokenNorm(nn.BatchNorm1d):
    """BatchNorm over all positions of a feature map, (B, T, d) → (B, T, d).

    A single position of a single sample has no variance. It is normalised with the running
    statistics, which stay unchanged.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name BatchNorm gives it
        """Normalise each of the d channels."""
        rows = input.flatten(0, 1)
        if self.training and len(rows) == 1:
            running = self.running_mean, self.running_var
            rows = F.batch_norm(rows, *running, self.weight, self.bias, eps=self.eps)
        else:
            rows = super().forward(rows)
        return rows.view_as(input)


class TwoNorms(nn.Module):
    """A network whose features are normalised twice, and one head on the sum of both embeddings.

    The head is linear and has no bias, so its output for the sum is the sum of its outputs. The
    network loses its own head.
    """

    def __init__(self, network: Network, head: nn.Linear) -> None:
        super().__init__()
        size, device = network.embedding_size, head.weight.device
        self.network = remove_head(network)
        self.norm_old = TokenNorm(size, device=device).requires_grad_(False)
        self.norm_new = TokenNorm(size, device=device)
        self.head = head
        self.two = False  # whether there are old classes, and both normalisations count

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> tuple[Tensor, Tensor]:
        """Return the embeddings for old classes and for new ones, (B, d) each."""
        tokens = self.network.tokens(x, mix, at)
        new = self.network.pool(self.norm_new(tokens))
        if not self.two:
            return torch.zeros_like(new), new
        return self.network.pool(self.norm_old(tokens)), new

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits of all classes, (B, C)."""
        old, new = self.embeddings(x, mix, at)
        logits: Tensor = self.head(old + new)
        return logits

    @torch.no_grad()
    def merge(self) -> None:
        """Update the normalisation for old classes: copy the other one at first, later average.

        Scales and shifts are averaged. Running statistics continue.
        """
        if not self.two:
            self.norm_old.load_state_dict(self.norm_new.state_dict())
            self.two = True
            return
        self.norm_old.weight.lerp_(self.norm_new.weight, 0.5)
        self.norm_old.bias.lerp_(self.norm_new.bias, 0.5)


class DRC(ExtendsNetwork):
    """Two light branches, for old and for new classes; adaptation, then fusion.

    A branch is a BatchNorm layer on the last feature map. Both share one classifier, and their
    outputs are added. At the start of a task, the old branch becomes the mean of both. Adaptation
    trains on new data alone, among new classes. Fusion trains on new data and the memory, with
    distillation from the old network and from the adapted one, and with the logarithms of the
    classes' shares added to the logits, because old classes are rare.

    Deviations: the classifier has no bias, so that its output for the sum of two embeddings is the
    sum of two outputs; fusion uses batches B1 ∪ B2, and the shares of the classes in their soft
    labels; both stages have the same optimizer; fusion starts from the adapted network, as the
    reference does for CIFAR. The first old branch copies the running statistics, too, and the old
    network of the second task answers with the only branch it has trained. (The reference adds its
    untrained one.) On networks without a feature map the branches are BatchNorm layers on the
    embedding.

    Mixing: fusion only. Soft labels in all cross-entropies; the old branch counts by a row's share
    of old classes. Distillation passes the mixed input through all networks.
    Criterion: the embedding is the sum of both branches', and the logits have the same addition as
    in the loss.
    """

    row_wise = False  # BatchNorm and means with weights cover the whole batch
    options: DRCOptions = DRCOptions()
    other_networks = ("old", "adapted")
    model: TwoNorms
    old: nn.Module | None = None  # the network before the task
    old_classes = 0
    adapted: nn.Module | None = None  # the network after adaptation

    def extended(self, first: Network) -> TwoNorms:
        """Return the network with two normalisations and a head without bias."""
        head = self.new_layer(first.head.in_features, first.head.out_features, bias=False)
        return TwoNorms(first, head)

    def grow(self, seen: int) -> None:
        """From the second task on, keep the old network and merge the branches."""
        if self.seen:
            self.old, self.old_classes = self.frozen_copy(), self.seen
            self.model.merge()
        self.model.head = self.grown(self.head, seen)

    def stages(self) -> Sequence[Stage]:
        """Return adaptation and fusion; the first task has one stage."""
        if self.old is None:
            return super().stages()
        if self.old_classes == self.seen:  # nothing to adapt to
            return [self.new_stage("fusion")]
        first = self.new_stage("adaptation", self.options.adaptation, mixed=False)
        return [first, Stage("fusion", max(1, self.settings.epochs - first.epochs))]

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage; fusion keeps the adapted network and adjusts logits by expected shares."""
        super().begin_stage(stage)
        if stage.name == "fusion":
            self.adapted = self.frozen_copy() if self.old_classes < self.seen else None
            self.adjust(self.expected_shares(), self.options.prior)

    def join(self, new: Tensor) -> Tensor:
        """Join new and replayed samples; adaptation uses new ones only."""
        return new if self.stage.name == "adaptation" else super().join(new)

    def begin_epoch(self, epoch: int, new: Tensor) -> None:
        """Plan the batches; fusion counts their labels, which gradient partners change."""
        super().begin_epoch(epoch, new)
        self._count_labels()

    def _count_labels(self) -> None:
        if self.stage.name == "fusion" and self.plan is not None:
            shares = label_shares(self.plan, self.head.out_features)
            self.adjust(shares, self.options.prior)

    def train_step(self, step: int) -> Tensor:
        """Return the loss of the current stage."""
        mixed = self.mixed_batch(step)
        if self.stage.name == "adaptation":
            return self.adaptation_loss(mixed)
        if self.stage.name == "fusion":
            return self.fusion_loss(mixed)
        return self.class_loss(self.logits(mixed), mixed.targets)

    def adaptation_loss(self, mixed: MixedBatch) -> Tensor:
        """Return the cross-entropy among new classes, of the samples of new classes."""
        labels = mixed.targets - self.old_classes
        logits = self.logits(mixed)[:, self.old_classes :]
        losses = self.cross_entropy(logits, labels.clamp(min=0), "none")
        return weighted_mean(losses, labels >= 0)

    def fusion_loss(self, mixed: MixedBatch) -> Tensor:
        """Return 0.2 · branches + 0.8 · CE(z + log π) + distillation from both networks."""
        options, known, inputs = self.options, self.old_classes, (mixed.x, mixed.mix, mixed.at)
        old, new = (self.head(part) for part in self.model.embeddings(*inputs))
        logits = self.adjusted(old + new)
        joint = self.cross_entropy(logits, mixed.targets)
        single = self.branch_loss(old, new, as_soft(mixed.targets, self.seen))
        loss = options.branches * single + (1 - options.branches) * joint
        for teacher, weight, outputs in (
            (self.old, options.distill_old, slice(0, known)),
            (self.adapted, options.distill_new, slice(known, None)),
        ):
            if teacher is not None:
                with torch.no_grad():
                    answers = teacher(*inputs)[:, outputs]
                kept = distillation(logits[:, outputs], answers, options.temperature)
                loss = loss + weight * kept
        return loss

    def branch_loss(self, old: Tensor, new: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the branches' logits (B, C): new on all rows, old on old rows."""
        share = targets[:, : self.old_classes].sum(dim=1)  # (B,) of old classes
        values = torch.cat([self.cross_entropy(part, targets, "none") for part in (old, new)])
        return weighted_mean(values, torch.cat([share, torch.ones_like(share)]))

    def end_task(self, new: Samples) -> None:
        """Store exemplars; old network, adapted network and shares belonged to the task."""
        self.old = self.adapted = self.adjustment = None
        super().end_task(new)

    # --- state ------------------------------------------------------------------------------

    def structure(self) -> dict[str, Any]:
        """Add which networks there are, and how many classes the old one knows."""
        return {
            **super().structure(),
            "two": self.model.two,
            "old": 0 if self.old is None else self.old_classes,
            "old_two": bool(getattr(self.old, "two", False)),
            "adapted": self.adapted is not None,
        }

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make networks of the saved shape."""
        known = structure["old"]
        if known > structure["seen"] or (known and not structure["two"]):
            raise InputError(f"structure.old is {known}, which does not fit the other numbers")
        self.old = self.adapted = None
        self.old_classes, self.seen = known, structure["seen"]
        if known:
            self._reshape(known, two=structure["old_two"])
            self.old = self.frozen_copy()
        self._reshape(structure["outputs"], two=structure["two"])
        if structure["adapted"]:
            self.adapted = self.frozen_copy()

    def _reshape(self, outputs: int, *, two: bool) -> None:
        """Give the network a new head, and one branch or two."""
        self.model.head = self.new_layer(self.head.in_features, outputs, bias=False)
        self.model.two = two

    def load_stage_state_dict(self, state: dict[str, Any], stage: Stage) -> None:
        """Check that there is an adapted network in fusion, and only there."""
        needed = stage.name == "fusion" and self.old_classes < self.seen
        if needed != (self.adapted is not None):
            raise InputError(f"structure.adapted does not fit the stage {stage.name!r}")
        super().load_stage_state_dict(state, stage)
        self._count_labels()


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w v / Σ w; 0 if all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-12)


def label_shares(plan: Plan, outputs: int) -> Tensor:
    """Return the share of each class in the soft labels of planned batches, (C,).

    One more label of every class keeps the shares above 0.
    """
    mass = torch.ones(outputs, device=plan.y.device)
    if plan.partner_y is None or plan.shares is None:
        mass += plan.y.flatten().bincount(minlength=outputs)
    else:
        own = plan.shares.flatten().to(mass.dtype)
        mass.index_add_(0, plan.y.flatten(), own)
        mass.index_add_(0, plan.partner_y.flatten(), 1 - own)
    return mass / mass.sum()
