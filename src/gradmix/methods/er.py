"""ER, experience replay: each batch of new data is joined by one from the memory.

Source: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.memory import random_priority
from gradmix.methods.base import Method
from gradmix.types import Samples


class ER(Method):
    """Uniform replay, random exemplars, one mean loss over new and replayed rows.

    Mixing: B1 ∪ B2 is mixed as one batch and trained on by cross-entropy with the soft labels.
    Criterion: the embedding is the input of the network's head, its last layer that head.
    """

    def train_step(self, new: Tensor) -> Tensor:
        """Algorithm 1, steps 12 to 23, up to the gradient."""
        batch = self.pool.batch(torch.cat([new, self.draw_replay()]))  # B1 ∪ B2
        mixed = self.mixer.mix(batch)  # partners, blend, labels
        logits = self.model(mixed.x, mix=mixed.mix, at=mixed.at)
        return F.cross_entropy(logits, mixed.targets)

    def draw_replay(self) -> Tensor:
        """Pool indices of B2: uniform from the memory, or all of it if it is smaller."""
        drawn = self.memory.draw(self.settings.replay_batch_size, self.streams.device("replay"))
        return self.pool.num_new + drawn

    def end_task(self, new: Samples) -> None:
        """Keep random exemplars of every new class (Algorithm 1, steps 26 and 27)."""
        self.memory.add(new, random_priority(len(new.y), self.streams.device("memory")))
