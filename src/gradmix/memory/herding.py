"""Herding: exemplars whose mean stays as near as can be to the mean of their class.

Source: Welling 2009, as used by iCaRL (Rebuffi et al., CVPR 2017).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def herding_ranks(features: Tensor, most: int) -> Tensor:
    """The order in which samples of one class are chosen, as a rank for every sample.

    At each turn the sample is chosen that brings the mean of the chosen nearest to the mean of
    all, on features of length 1. Only `most` are chosen; the others share the last rank.
    """
    x = F.normalize(features, dim=1)
    mean = x.mean(dim=0)
    ranks = torch.full((len(x),), float(len(x)), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(mean)
    for turn in range(min(most, len(x))):
        distance = (mean - (total + x) / (turn + 1)).square().sum(dim=1)
        distance[ranks < len(x)] = torch.inf  # none twice
        chosen = int(distance.argmin())
        ranks[chosen] = turn
        total = total + x[chosen]
    return ranks
