"""Labels: how much of each sample's label the target of a mix contains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradmix.mixing.recipe import Recipe

KAPPA = 3.0  # Remix: one class is much rarer if the other has this many times its samples


def label_shares(
    recipe: Recipe, y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor
) -> Tensor:
    """Return the share of the own label in each target, by the label rule of a recipe.

    Args:
        recipe: Names the rule and has its τ.
        y: Own labels, (S, B).
        partner_y: Labels of the partners, (S, B).
        lam: Mixing ratio of each batch, float64 (S,).
        counts: Training samples of each class, (C,).

    Returns:
        Shares between 0 and 1, (S, B).
    """
    return SHARES[recipe.labels](y, partner_y, lam, counts, recipe.tau)


def proportional(y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return λ for every label (Mixup)."""
    return lam.to(torch.float32)[:, None].expand_as(y)


def remix(y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return λ, except that a much rarer class takes the whole label (Remix).

    It does so if the other class's share of the input is below `tau`.
    """
    lam = lam[:, None]
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = lam.to(torch.float32).expand_as(y)
    shares = shares.masked_fill((own >= KAPPA * other) & (lam < tau), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < tau), 1.0)


SHARES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "proportional": proportional,
    "remix": remix,
}
"""The label rules by name; their arguments are those of `label_shares`, with τ last."""
