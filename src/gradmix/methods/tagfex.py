"""TagFex: task-specific networks learn from a task-agnostic one that sees no labels.

Source: Zheng et al., "Task-Agnostic Guided Feature Expansion for Class-Incremental Learning",
CVPR 2025; reference code bwnzheng/TagFex_CVPR2025.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, setting
from gradmix.methods.er import NetworkOfParts
from gradmix.methods.losses import as_soft, contrast
from gradmix.methods.memo import Expanding, ExpandingOptions
from gradmix.models.heads import drop_output, grow_head, widen_head
from gradmix.models.network import Mix, Network, new_linear, remove_head
from gradmix.models.vit import attend
from gradmix.types import MixedBatch

TEMPERATURE = 0.2  # of both contrastive losses
TRANSFER_TEMPERATURE = 2.0
AGNOSTIC_SHARE = 0.05  # of the task-agnostic weights in a new task-specific network


class TagFexOptions(ExpandingOptions):
    """The reference's values, except for `align`; see MEMO."""

    auxiliary: Number = setting(2.0, "Weight of the new-versus-old loss.", ge=0)
    contrast: Number = setting(1.0, "Weight of the contrastive loss of two views.", ge=0)
    distill: Number = setting(2.0, "Weight of the distillation of task-agnostic features.", ge=0)
    transfer: Number = setting(1.0, "Weight of the transfer to the newest network.", ge=0)


class Seen(NamedTuple):
    """What the networks see of a batch."""

    embeddings: Tensor  # (B, t · d) of all task-specific networks
    newest: Tensor  # (B, d) embedding of the newest one
    general: Tensor  # (B, d) embedding of the task-agnostic network
    before: Tensor  # (B, d) the same at the end of the previous task
    specific: Tensor  # (B, T, d) tokens of the newest task-specific network
    agnostic: Tensor  # (B, T, d) tokens of the task-agnostic network


class MergeAttention(nn.Module):
    """A task-specific network's tokens attend to a task-agnostic network's.

    Every projection has its own weights without bias. There is no projection of the output.
    """

    def __init__(self, width: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width, device=device) for _ in range(2)])
        self.query = _projection(width, generator, device)
        self.keys = nn.ModuleList([_projection(width, generator, device) for _ in range(2)])
        self.values = nn.ModuleList([_projection(width, generator, device) for _ in range(2)])

    def forward(self, agnostic: Tensor, specific: Tensor) -> Tensor:
        """Return the mean of the merged tokens, (B, d), of tokens (B, T, d) of each network."""
        tokens = [norm(part) for norm, part in zip(self.norms, (agnostic, specific), strict=True)]
        keys, values = (
            torch.cat([project(part) for project, part in zip(each, tokens, strict=True)], dim=1)
            for each in (self.keys, self.values)
        )
        return attend(self.query(tokens[1]), keys, values).mean(dim=1)


class TagFexNetwork(NetworkOfParts):
    """Task-specific networks with one head on all their embeddings; and, for training, the rest.

    Predictions use the task-specific networks only. All but the newest are frozen. All have the
    form of the first, whose head becomes the head.
    """

    def __init__(self, first: Network, generator: torch.Generator) -> None:
        super().__init__()
        head, self.width = first.head, first.embedding_size
        self.specifics = nn.ModuleList([remove_head(first)])
        self.agnostic = copy.deepcopy(first)
        width, device = self.width, head.weight.device
        self.projector = nn.Sequential(  # the reference's sizes for d = 512
            new_linear(width, 4 * width, generator=generator, device=device),
            nn.ReLU(),
            new_linear(4 * width, 2 * width, generator=generator, device=device),
        )
        self.predictor: nn.Linear | None = None  # from the second task on, as all below
        self.old_agnostic: Network | None = None
        self.old_projector: nn.Sequential | None = None
        self.auxiliary: nn.Linear | None = None  # one output for all old classes, then the new
        self.merge: MergeAttention | None = None
        self.merged_head: nn.Linear | None = None  # the new classes
        self.head = head

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> list[Tensor]:
        """Return the embedding of every task-specific network, (B, d) each."""
        return [net.features(x, mix, at) for net in self._networks()]

    def observe(self, mixed: MixedBatch) -> Seen:
        """Return everything that the losses need of a batch."""
        inputs = mixed.x, mixed.mix, mixed.at
        *old, newest = self._networks()
        specific, agnostic = newest.tokens(*inputs), self.agnostic.tokens(*inputs)
        own, general = newest.pool(specific), self.agnostic.pool(agnostic)
        with torch.no_grad():
            embeddings = [net.features(*inputs) for net in old]
            before = self.old_agnostic.features(*inputs) if self.old_agnostic else general
        return Seen(torch.cat([*embeddings, own], dim=1), own, general, before, specific, agnostic)

    def _networks(self) -> list[Network]:
        return [net for net in self.specifics if isinstance(net, Network)]

    def add_specific(self, outputs: int, new: int, generator: torch.Generator) -> None:
        """Add the parts of a new task with `new` classes, of `outputs` in total.

        The new task-specific network is 0.95 of the last one and 0.05 of the task-agnostic one.
        Old classes ignore its embedding at first. BatchNorm statistics start anew.
        """
        old, added = self.head.out_features, copy.deepcopy(self._networks()[-1])
        with torch.no_grad():
            for own, other in zip(added.parameters(), self.agnostic.parameters(), strict=True):
                own.lerp_(other, AGNOSTIC_SHARE)
        for module in added.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.reset_running_stats()
        self.specifics.requires_grad_(False).append(added)
        inputs = self.width * len(self.specifics)
        self.head = widen_head(self.head, inputs, outputs, generator=generator)
        with torch.no_grad():
            self.head.weight[:old, -self.width :] = 0
        self.old_agnostic = copy.deepcopy(self.agnostic).requires_grad_(False)
        self.old_projector = copy.deepcopy(self.projector).requires_grad_(False)
        self.add_heads(new, generator)

    def add_heads(self, new: int, generator: torch.Generator) -> None:
        """Make new heads for `new` classes, and a predictor if there is none."""
        width, device = self.width, self.head.weight.device
        if self.predictor is None:
            self.predictor = new_linear(width, width, generator=generator, device=device)
        self.auxiliary = new_linear(width, new + 1, generator=generator, device=device)
        self.merge = self.merged_head = None
        if new:
            self.merge = MergeAttention(width, generator=generator, device=device)
            self.merged_head = new_linear(width, new, generator=generator, device=device)


def _projection(width: int, generator: torch.Generator, device: torch.device) -> nn.Linear:
    """Return a square layer without bias, Xavier-normal, drawn on the CPU."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, width, bias=False, device="cpu")
    nn.init.xavier_normal_(layer.weight, generator=generator)
    return layer.to(device)


class TagFex(Expanding):
    """A new network per task, and one task-agnostic network that guides it.

    The task-agnostic network learns to recognise a second view of each sample (InfoNCE) and to
    keep the features that it had (InfoNCE with its frozen copy). An attention merges its tokens
    with the newest network's. The merged features classify the new classes, and the newest
    network learns their answers while they are better than its own.

    Deviations: exemplars are random by default; new classes' weights are aligned only with
    `align=1`; each view passes the networks by itself, so BatchNorm sees one view at a time;
    networks without a feature map have one token. Without random transforms both views are the
    same, and the contrastive loss only spreads the samples.
    A task without new classes continues to train the newest network.

    Mixing: both views have the same partners and λ. The auxiliary loss folds the shares of old
    classes into one. Rows count in the merged losses by their share of new classes.
    Criterion: the embedding concatenates those of all task-specific networks.
    """

    row_wise = False  # each row is compared with all others
    options: TagFexOptions = TagFexOptions()
    model: TagFexNetwork  # type: ignore[assignment]

    def extended(self, first: Network) -> TagFexNetwork:
        """Return a network to which task-specific networks can be added."""
        return TagFexNetwork(first, self.streams.generator("heads"))

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
