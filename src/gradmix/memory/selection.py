"""Choosing a few samples of every class by priority."""

from __future__ import annotations

import torch
from torch import Tensor


def first_of_each_class(labels: Tensor, priority: Tensor, quota: Tensor) -> Tensor:
    """Indices of the `quota[c]` samples of each class c with the lowest priority.

    Ordered by class, then by priority; equal priorities keep their order.
    """
    by_priority = priority.argsort(stable=True)
    order = by_priority[labels[by_priority].argsort(stable=True)]
    counts = labels.bincount(minlength=len(quota))
    start = counts.cumsum(0) - counts
    of_class = labels[order]
    rank = torch.arange(len(order), device=labels.device) - start[of_class]
    return order[rank < quota[of_class]]
