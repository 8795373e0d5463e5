"""The criterion: which class pairs may be mixed, by gradients of the last layer."""

from __future__ import annotations

from gradmix.criterion.embedding import embed, evaluating, find_head
from gradmix.criterion.pair_tables import Pairs, PairTables, pair_table, pair_tables
from gradmix.criterion.scores import (
    AVERAGES,
    PAIRINGS,
    Exemplars,
    HeadGradient,
    Scored,
    class_scores,
    memory_gradient,
    memory_weights,
    projections,
    sample_scores,
)
from gradmix.criterion.selector import SEARCHES, PairSelector, choose_search

__all__ = [
    "AVERAGES",
    "PAIRINGS",
    "SEARCHES",
    "Exemplars",
    "HeadGradient",
    "PairSelector",
    "PairTables",
    "Pairs",
    "Scored",
    "choose_search",
    "class_scores",
    "embed",
    "evaluating",
    "find_head",
    "memory_gradient",
    "memory_weights",
    "pair_table",
    "pair_tables",
    "projections",
    "sample_scores",
]
