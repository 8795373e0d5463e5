"""Herding: choose exemplars whose mean is as near as possible to the mean of their class.

Source: Welling 2009, as used by iCaRL (Rebuffi et al., CVPR 2017).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def herding_ranks(features: Tensor, most: int) -> Tensor:
    """Return the rank at which each sample of one class is chosen, (n,).

    Each turn chooses the sample that brings the mean of the chosen nearest to the mean of all.

    Args:
        features: Embeddings, (n, d); they are scaled to length 1.
        most: Number of samples to choose; all others share the last rank.
    """
    x = F.normalize(features, dim=1)
    mean = x.mean(dim=0)
    ranks = torch.full((len(x),), float(len(x)), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(mean)
    for turn in range(min(most, len(x))):
        distance = (mean - (total + x) / (turn + 1)).square().sum(dim=1)
        distance[ranks < len(x)] = torch.inf  # choose no sample twice
        chosen = int(distance.argmin())
        ranks[chosen] = turn
        total = total + x[chosen]
    return ranks
