"""TagFex's network: one task-specific network per task, and a task-agnostic one for training."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradmix.models.heads import widen_head
from gradmix.models.network import Mix, Network, new_linear, remove_head
from gradmix.models.vit import attend
from gradmix.types import MixedBatch

AGNOSTIC_SHARE = 0.05  # of the task-agnostic weights in a new task-specific network


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


class TagFexNetwork(nn.Module):
    """Task-specific networks with one head on all their embeddings; and, for training, the rest.

    Predictions use the task-specific networks only. All but the newest are frozen.

    Args:
        first: The network that all others have the form of. Its head becomes the head.
        generator: Draws the weights of the projector.
    """

    def __init__(self, first: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.draws_randomly, self.width = first.draws_randomly, first.embedding_size
        head = first.head
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

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits of all classes, (B, C)."""
        embeddings = [net.features(x, mix, at) for net in self._networks()]
        logits: Tensor = self.head(torch.cat(embeddings, dim=1))
        return logits

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

    def train(self, mode: bool = True) -> TagFexNetwork:
        """Set the mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        for part in (*self.specifics[:-1], self.old_agnostic, self.old_projector):
            if part is not None:
                part.eval()
        return self


def _projection(width: int, generator: torch.Generator, device: torch.device) -> nn.Linear:
    """Return a square layer without bias, Xavier-normal, drawn on the CPU."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, width, bias=False, device="cpu")
    nn.init.xavier_normal_(layer.weight, generator=generator)
    return layer.to(device)
