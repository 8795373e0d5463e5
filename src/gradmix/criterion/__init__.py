"""The criterion: which class pairs may be mixed, by gradients of the last layer."""

from __future__ import annotations

from gradmix.criterion.embedding import embed, evaluating, find_head
from gradmix.criterion.selector import Pairs, PairSelector

__all__ = ["PairSelector", "Pairs", "embed", "evaluating", "find_head"]
