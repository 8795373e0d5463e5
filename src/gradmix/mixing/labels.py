"""How much of each label? The share of a sample's own label in the soft target of its mix."""

from __future__ import annotations

import torch
from torch import Tensor

KAPPA = 3.0  # Remix: how many times rarer a class must be to be favoured


def remix_shares(
    y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, tau: float = 0.5
) -> Tensor:
    """The rarer class of a very unequal pair takes the whole label, else λ; (S, B).

    A class is far rarer if the other has `KAPPA` times its samples; `counts` are (C,). It takes the
    label if the other's share of the input is below `tau`; 0.5 is Remix's. `lam` (S,) is each
    batch's λ in float64.
    """
    lam = lam[:, None]
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = lam.to(torch.float32).repeat(1, y.shape[1])
    shares.masked_fill_((own >= KAPPA * other) & (lam < tau), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < tau), 1.0)


def soft_targets(y: Tensor, partner_y: Tensor, shares: Tensor, num_outputs: int) -> Tensor:
    """`shares` (B,) of the own label plus the rest of the partner's, (B, C)."""
    targets = torch.zeros(len(y), num_outputs, device=y.device)
    targets.scatter_(1, y[:, None], shares[:, None])
    return targets.scatter_add_(1, partner_y[:, None], (1 - shares)[:, None])
