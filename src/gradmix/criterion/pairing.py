"""Which exemplar of one class is mixed with which of another, for all classes at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.errors import UnknownNameError

PAIRINGS = ("one-to-one", "all-pairs")


def class_positions(counts: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """For samples in order of their class, the exemplar of each class in sample pair k, (K, M).

    As the first of the pair and as the second. "one-to-one" takes exemplar k of the first with
    k + 1 of the second, cyclically; "all-pairs" every one with every one, where only those below
    the classes' `counts` are meant.
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
