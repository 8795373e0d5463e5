"""ER, experience replay: each batch of new data is joined by one from the memory.

Source: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from gradmix.methods.base import Method


class ER(Method):
    """Uniform replay, random exemplars, one mean loss over new and replayed rows.

    Mixing: B1 ∪ B2 is mixed as one batch and trained on by cross-entropy with the soft labels.
    Criterion: the embedding is the input of the network's head, its last layer that head.
    """

    def train_step(self, step: int) -> Tensor:
        """Algorithm 1, steps 12 to 23, up to the gradient."""
        mixed = self.mixed_batch(step)  # B1 ∪ B2: partners, blend, labels
        return F.cross_entropy(self.logits(mixed), mixed.targets)
