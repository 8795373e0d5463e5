"""ER, experience replay: each batch of new data is joined by a batch from the memory.

Source: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.

This file is the training step of most methods. With GradMix it is Algorithm 1 of the paper:

    plan_epoch   steps 12 to 22: B1 ∪ B2 of every step, partners, labels
    train_step   step 23: mix, forward pass, loss
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.data.pool import Pool
from gradmix.errors import InputError
from gradmix.methods.base import Method
from gradmix.mixing.mixer import Plan
from gradmix.models.network import Mix, Network
from gradmix.types import MixedBatch


class ER(Method):
    """Uniform replay, random exemplars, one mean loss over new and replayed rows.

    Mixing: B1 ∪ B2 is mixed as one batch; the loss is the cross-entropy with soft labels.
    Criterion: the embedding is the input of the network's head.
    """

    online = True

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Join each batch of new samples with replayed ones and draw how they are mixed."""
        index = self.join(new)  # (S, B) pool rows, B = |B1| + |B2|
        if not self.stage.mixed:
            return self.mixer.unmixed(self.pool.y[index], index)
        return self.mixer.plan(index, self.selector.pairs)

    def join(self, new: Tensor) -> Tensor:
        """Return pool rows of B1 ∪ B2 for every step, (S, |B1| + |B2|)."""
        replay = torch.stack([self.draw_replay() for _ in new])  # (S, |B2|)
        return torch.cat([new, replay], dim=1)

    def draw_replay(self) -> Tensor:
        """Draw pool rows of B2 uniformly from the memory; all of it if it is smaller."""
        drawn = self.memory.draw(self.replay_size, self.streams.device("replay"))
        return self.pool.num_new + drawn

    def mixed_batch(self, step: int) -> MixedBatch:
        """Return the batch of a step, mixed as planned."""
        assert self.plan is not None
        return self.mixer.mix(self.plan, step)

    def logits(self, mixed: MixedBatch) -> Tensor:
        """Return the network's outputs for a mixed batch, (B, C)."""
        outputs: Tensor = self.model(mixed.x, mix=mixed.mix, at=mixed.at)
        return outputs

    def train_step(self, step: int) -> Tensor:
        """Return the cross-entropy of one mixed batch."""
        mixed = self.mixed_batch(step)
        return self.class_loss(self.logits(mixed), mixed.targets)

    # --- the loss ---------------------------------------------------------------------------

    def class_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy among all classes, after logit adjustment, if any.

        Args:
            logits: The outputs of all classes, (B, C).
            targets: Labels (B,) or soft labels (B, C).
        """
        return self.cross_entropy(self.adjusted(logits), targets)

    def cross_entropy(self, logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy of any logits (B, K) with labels smoothed as the settings say.

        Args:
            logits: Outputs, (B, K).
            targets: Labels (B,) or soft labels (B, K).
            reduction: "mean", or "none" for the value of each row, (B,).
        """
        smoothing = self.settings.label_smoothing
        return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction=reduction)

    def smoothed(self, targets: Tensor) -> Tensor:
        """Return soft labels (B, K) smoothed in the same way, for losses that are no softmax."""
        share = self.settings.label_smoothing
        return targets * (1 - share) + share / targets.shape[1]

    def adjusted(self, logits: Tensor) -> Tensor:
        """Return z + τ log π, (B, C); the logits z themselves if τ is 0."""
        return logits if self.adjustment is None else logits + self.adjustment

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task, and the shares π of its classes for logit adjustment."""
        super().set_pool(pool)
        if self.settings.logit_adjustment:
            self.adjust(self.expected_shares())

    def adjust(self, shares: Tensor, default: float = 0.0) -> None:
        """Let the loss and the criterion add τ log π to the logits, with these shares π, (C,).

        τ is the setting, or the default if that is 0.
        """
        power = self.settings.logit_adjustment or default
        self.adjustment = power * shares.log() if power else None

    def expected_shares(self) -> Tensor:
        """Return `class_shares` above 0, also for classes without samples, (C,)."""
        return self.class_shares().clamp(min=1 / len(self.pool))

    def class_shares(self) -> Tensor:
        """Return π, the expected share of each class in the labels that a step trains on, (C,)."""
        return self.shares_of(min(self.settings.batch_size, self.epoch_samples()), self.replay_size)

    def shares_of(self, new: float, memory: float) -> Tensor:
        """Return the share of each class if new samples and the memory have these weights, (C,)."""
        y, number, outputs = self.pool.y, self.pool.num_new, self.head.out_features
        shares = torch.zeros(outputs, dtype=torch.float32, device=y.device)
        for weight, labels in ((new, y[:number]), (memory, y[number:])):
            if len(labels):
                shares += labels.bincount(minlength=outputs) * (weight / len(labels))
        return shares / shares.sum()


class NetworkOfParts(nn.Module, ABC):
    """Several parts, each with an embedding of its own, and one head on all embeddings.

    Frozen parts stay in evaluation mode.
    """

    head: nn.Linear

    @abstractmethod
    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> Sequence[Tensor]:
        """Return the embedding of every part, (B, d) each."""

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits of all classes, (B, C)."""
        logits: Tensor = self.head(torch.cat([*self.embeddings(x, mix, at)], dim=1))
        return logits

    def train(self, mode: bool = True) -> NetworkOfParts:
        """Set the mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        for child in self.children():
            for part in child if isinstance(child, nn.ModuleList) else [child]:
                weights = list(part.parameters())
                if weights and not any(weight.requires_grad for weight in weights):
                    part.eval()
        return self


class ExtendsNetwork(ER):
    """ER that adds parts to the network when new classes come; it needs a `Network`."""

    grows = True
    needs_new_classes = True
    online = False

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if not isinstance(model, Network):
            raise InputError(
                f"model is a {type(model).__name__}; {type(self).__name__} changes the network and "
                "needs one with shared and special parts: write it as a "
                "gradmix.models.network.Network"
            )
        self.model = self.extended(model)

    def extended(self, first: Network) -> nn.Module:
        """Return the network of the first task, which may have further parts."""
        return first
