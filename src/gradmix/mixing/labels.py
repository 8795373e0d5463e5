"""How much of each label? The share of a sample's own label in the soft target of its mix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

KAPPA = 3.0  # Remix: how many times rarer a class must be to be favoured


class Rarer(NamedTuple):
    """For every ordered pair of classes, flat (C · C,), which of the two is far rarer."""

    own: Tensor  # the first is
    other: Tensor  # the second is


def rarer_classes(counts: Tensor) -> Rarer:
    """One class is far rarer if the other has `KAPPA` times its samples; `counts` are (C,)."""
    often = counts[:, None] >= KAPPA * counts  # the first has that many more
    return Rarer(often.T.flatten(), often.flatten())


def remix_shares(pair: Tensor, lam: Tensor, rarer: Rarer, tau: float = 0.5) -> Tensor:
    """The rarer class of a very unequal pair takes the whole label, else λ; (S, B).

    It does if the other's share of the input is below `tau`; 0.5 is Remix's. `pair` is own
    label · C + the partner's, `lam` (S,) each batch's λ in float64.
    """
    lam = lam[:, None]
    shares = lam.to(torch.float32).repeat(1, pair.shape[1])
    shares.masked_fill_(rarer.other[pair] & (lam < tau), 0.0)
    return shares.masked_fill_(rarer.own[pair] & (1 - lam < tau), 1.0)


def soft_targets(y: Tensor, partner_y: Tensor, shares: Tensor, num_outputs: int) -> Tensor:
    """`shares` (B,) of the own label plus the rest of the partner's, (B, C)."""
    targets = torch.zeros(len(y), num_outputs, device=y.device)
    targets.scatter_(1, y[:, None], shares[:, None])
    return targets.scatter_add_(1, partner_y[:, None], (1 - shares)[:, None])
