"""A-GEM, averaged gradient episodic memory: no step may raise the loss of the memory.

Source: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", ICLR 2019; reference form in
aimagelab/mammoth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradmix.methods.er import ER


class AGEM(ER):
    """Trains on B1; a gradient that opposes the memory's loses its component along it.

    The reference gradient comes from a random batch of the memory, as large as B2, drawn at each
    step. It covers all trained parameters.

    Mixing: B1 is mixed within itself, and partners of harmful pairs come from the new data or the
    memory. The reference gradient stays unmixed. Criterion: as in ER.
    """

    _reference: list[Tensor | None] | None = None  # from `train_step` to `adjust_gradients`

    def join(self, new: Tensor) -> Tensor:
        """Return the new samples alone; the memory has its own batch."""
        return new

    def train_step(self, step: int) -> Tensor:
        """Return the cross-entropy of the mixed B1; compute the memory's gradient beside it."""
        self._reference = self.memory_gradient() if len(self.memory) else None
        return super().train_step(step)

    def memory_gradient(self) -> list[Tensor | None]:
        """Return the gradient of a random batch from the memory, for each trained parameter."""
        x, y = self.pool.batch(self.draw_replay())
        loss = self.cross_entropy(self.model(x), y)
        gradient = torch.autograd.grad(loss, self.parameters(), allow_unused=True)
        # A sum instead of a mean: only the direction matters.
        self.ranks.all_sum([part for part in gradient if part is not None])
        return list(gradient)

    def adjust_gradients(self) -> None:
        """Remove the component that opposes the memory's gradient."""
        if self._reference is not None:
            project(self.parameters(), self._reference)
            self._reference = None

    def class_shares(self) -> Tensor:
        """Return the shares among the new samples: the loss covers no others."""
        return self.shares_of(new=1, memory=0)


@torch.no_grad()
def project(parameters: Sequence[nn.Parameter], reference: Sequence[Tensor | None]) -> None:
    """Replace the gradient g by g − (g·r / r·r) r if g·r < 0, in place."""
    pairs = [
        (parameter.grad, part)
        for parameter, part in zip(parameters, reference, strict=True)
        if parameter.grad is not None and part is not None
    ]
    product = torch.stack([(own * part).sum() for own, part in pairs]).sum()
    squares = torch.stack([part.square().sum() for _, part in pairs]).sum()
    factor = torch.where(product < 0, product / squares, 0.0)
    for own, part in pairs:
        own -= factor * part
