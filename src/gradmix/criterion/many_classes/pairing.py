"""Which exemplars of two classes form a sample pair, for all classes at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.criterion.scores import PAIRINGS
from gradmix.errors import UnknownNameError


def class_positions(counts: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """Return the exemplar of each class in sample pair k, as first and as second, both (K, M).

    Samples are sorted by class; `counts` (K,) says how many each class has. "one-to-one" pairs
    exemplar k of the first class with k + 1 of the second, cyclically. "all-pairs" pairs every
    exemplar with every other; entries beyond a class's count repeat earlier ones.
    """
    start = (counts.cumsum(0) - counts)[:, None]
    most = int(counts.max())
    each = torch.arange(most, device=counts.device)
    if pairing == "one-to-one":
        return start + each % counts[:, None], start + (each + 1) % counts[:, None]
    if pairing == "all-pairs":
        first, second = each.repeat_interleave(most), each.repeat(most)
        return start + first % counts[:, None], start + second % counts[:, None]
    raise UnknownNameError("pairing", pairing, PAIRINGS)
