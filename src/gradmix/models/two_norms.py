"""DRC's network: two normalisations of the last feature map, for old and for new classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.models.network import Mix, Network, remove_head


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

    The head is linear and has no bias, so its output for the sum is the sum of its outputs.

    Args:
        network: The network; it loses its head.
        head: Embedding → logits, without bias.
    """

    def __init__(self, network: Network, head: nn.Linear) -> None:
        super().__init__()
        self.draws_randomly = network.draws_randomly
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
