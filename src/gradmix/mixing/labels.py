"""How much of each label? The share of a sample's own label in the soft target of its mix."""

from __future__ import annotations

import torch
from torch import Tensor

KAPPA = 3.0  # Remix: how many times rarer a class must be to be favoured


def remix_shares(
    y: Tensor, partner_y: Tensor, lam: float, counts: Tensor, tau: float = 0.5
) -> Tensor:
    """The rarer class of a very unequal pair takes the whole label, else λ; (B,).

    A class is favoured if the other has `KAPPA` times its samples in the pool, and the other's
    share of the input is below `tau`; 0.5 is Remix's. `counts` are the samples of every class.
    """
    own, other = counts.index_select(0, y), counts.index_select(0, partner_y)
    shares = torch.full(y.shape, lam, device=y.device)
    if lam < tau:
        shares.masked_fill_(own >= KAPPA * other, 0.0)
    if 1 - lam < tau:
        shares.masked_fill_(other >= KAPPA * own, 1.0)
    return shares


def soft_targets(y: Tensor, partner_y: Tensor, shares: Tensor | float, num_outputs: int) -> Tensor:
    """`shares` of the own label plus the rest of the partner's, (B, C)."""
    targets = torch.zeros(len(y), num_outputs, device=y.device)
    if not isinstance(shares, Tensor):
        shares = torch.full(y.shape, shares, device=y.device)
    targets.scatter_(1, y[:, None], shares[:, None])
    return targets.scatter_add_(1, partner_y[:, None], (1 - shares)[:, None])
