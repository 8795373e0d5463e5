"""ER, experience replay: each batch of new data is joined by a batch from the memory.

Source: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.

This file is the training step of most methods. With GradMix it is Algorithm 1 of the paper:

    plan_epoch   steps 12 to 22: B1 ∪ B2 of every step, partners, labels
    train_step   step 23: mix, forward pass, loss
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.methods.base import Method
from gradmix.mixing.mixer import Plan
from gradmix.types import MixedBatch


class ER(Method):
    """Uniform replay, random exemplars, one mean loss over new and replayed rows.

    Mixing: B1 ∪ B2 is mixed as one batch; the loss is the cross-entropy with soft labels.
    Criterion: the embedding is the input of the network's head.
    """

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Join each batch of new samples with replayed ones and draw how they are mixed."""
        return self.mixer.plan(self.join(new), self.selector.pairs)

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

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (B, C) with labels, smoothed as the settings say.

        Args:
            logits: Outputs, (B, C).
            targets: Labels (B,) or soft labels (B, C).
        """
        return F.cross_entropy(logits, targets, label_smoothing=self.settings.label_smoothing)

    def train_step(self, step: int) -> Tensor:
        """Return the cross-entropy of one mixed batch."""
        mixed = self.mixed_batch(step)
        return self.cross_entropy(self.logits(mixed), mixed.targets)
