"""Labels: how much of each sample's label the target of a mix contains."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.mixing.recipe import Recipe

KAPPA = 3.0  # Remix: one class is much rarer if the other has this many times its samples


def label_shares(
    recipe: Recipe, y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor
) -> Tensor:
    """Return the share of the own label: λ, or by Remix all or nothing if a class is much rarer.

    Args:
        recipe: Decides between the two. The rarer class takes the whole label if the other's share
            of the input is below the recipe's τ.
        y: Own labels, (S, B).
        partner_y: Labels of the partners, (S, B).
        lam: Mixing ratio of each batch, float64 (S,).
        counts: Training samples of each class, (C,).

    Returns:
        Shares between 0 and 1, (S, B).
    """
    lam = lam[:, None]
    shares = lam.to(torch.float32).expand_as(y)
    if recipe.labels == "proportional":
        return shares
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = shares.masked_fill((own >= KAPPA * other) & (lam < recipe.tau), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < recipe.tau), 1.0)
