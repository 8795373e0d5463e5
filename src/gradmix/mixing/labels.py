"""Labels: how much of each sample's label the target of a mix contains."""

from __future__ import annotations

import torch
from torch import Tensor

KAPPA = 3.0  # Remix: one class is much rarer if the other has this many times its samples


def remix_shares(
    y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, tau: float = 0.5
) -> Tensor:
    """Return Remix's share of the own label: the much rarer class takes all, otherwise λ.

    Args:
        y: Own labels, (S, B).
        partner_y: Labels of the partners, (S, B).
        lam: Mixing ratio of each batch, float64 (S,).
        counts: Training samples of each class, (C,).
        tau: The rarer class takes the whole label if the other's share of the input is below
            this; Remix uses 0.5.

    Returns:
        Shares between 0 and 1, (S, B).
    """
    lam = lam[:, None]
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = lam.to(torch.float32).repeat(1, y.shape[1])
    shares.masked_fill_((own >= KAPPA * other) & (lam < tau), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < tau), 1.0)
