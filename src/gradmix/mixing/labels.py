"""Labels: how much of each sample's label the target of a mix contains.

A rule takes the own labels (S, B), the labels of the partners (S, B), the mixing ratio of each
batch (S,), the number of training samples of each class (C,) and the threshold τ. It returns shares
from 0 to 1, (S, B).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

KAPPA = 3.0  # Remix: one class is much rarer if the other has this many times its samples


def proportional(
    y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, threshold: float
) -> Tensor:
    """Return λ for every label (Mixup)."""
    return lam.to(torch.float32)[:, None].expand_as(y)


def remix(y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, threshold: float) -> Tensor:
    """Return λ, except that a much rarer class takes the whole label (Remix).

    It does so if the other class's share of the input is below `threshold`.
    """
    lam = lam[:, None]
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = lam.to(torch.float32).expand_as(y)
    shares = shares.masked_fill((own >= KAPPA * other) & (lam < threshold), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < threshold), 1.0)


SHARES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "proportional": proportional,
    "remix": remix,
}
"""The label rules by name."""
