"""The criterion: which class pairs may be mixed, by gradients of the last layer."""

from __future__ import annotations

from gradmix.criterion.embedding import embed, evaluating, find_head
from gradmix.criterion.scores import (
    Exemplars,
    Scored,
    class_scores,
    mean_gradient,
    projections,
    sample_scores,
    sample_weights,
)
from gradmix.criterion.selector import (
    Pairs,
    PairSelector,
    PairTables,
    choose_search,
    pair_tables,
)

__all__ = [
    "Exemplars",
    "PairSelector",
    "PairTables",
    "Pairs",
    "Scored",
    "choose_search",
    "class_scores",
    "embed",
    "evaluating",
    "find_head",
    "mean_gradient",
    "pair_tables",
    "projections",
    "sample_scores",
    "sample_weights",
]
