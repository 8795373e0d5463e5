"""Which class pairs may be mixed: gradients of the head, scores of pairs, the pair table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmix.criterion.embedding import embed, evaluating, find_head
from gradmix.criterion.gradients import (
    Exemplars,
    HeadGradient,
    memory_gradient,
    memory_weights,
    projections,
)
from gradmix.criterion.many_classes.on_demand import SEARCHES, PairsOnDemand, choose_search
from gradmix.criterion.many_classes.sketch import make_sketch
from gradmix.criterion.pairing import PAIRINGS
from gradmix.criterion.rolling import Rolling
from gradmix.criterion.samples import SamplePairs, score_all
from gradmix.criterion.scores import (
    BLOCK_ELEMENTS,
    Scored,
    class_scores,
    row_scores,
    sample_scores,
)
from gradmix.types import PairTable

__all__ = [
    "PAIRINGS",
    "SEARCHES",
    "Exemplars",
    "HeadGradient",
    "PairsOnDemand",
    "Rolling",
    "SamplePairs",
    "Scored",
    "choose_search",
    "class_scores",
    "embed",
    "evaluating",
    "find_head",
    "make_sketch",
    "memory_gradient",
    "memory_weights",
    "pair_table",
    "pair_tables",
    "projections",
    "row_scores",
    "sample_scores",
    "score_all",
]


def pair_tables(
    exemplars: Exemplars,
    memory: Exemplars,
    ratios: Sequence[float],
    *,
    bias: bool = True,
    pairing: str = "one-to-one",
    average: str = "sample",
    block: int = BLOCK_ELEMENTS,
) -> tuple[PairTable, ...]:
    """The pair table of all classes among the exemplars, for each mixing ratio.

    `block` bounds how many scores are computed at once, and so the memory beside the tables.
    """
    gradient = memory_gradient(memory, bias=bias, average=average)
    s = projections(exemplars.embeddings, gradient)
    samples = Scored(exemplars.logits, s, exemplars.labels)
    classes, scores = class_scores(samples, ratios, pairing, block)
    return tuple(PairTable.from_scores(classes, table) for table in scores)


def pair_table(
    exemplars: Exemplars,
    memory: Exemplars,
    lam: float,
    *,
    bias: bool = True,
    pairing: str = "one-to-one",
    average: str = "sample",
) -> PairTable:
    """The pair table for one mixing ratio (Algorithm 1, steps 3 to 9)."""
    options: dict[str, Any] = {"bias": bias, "pairing": pairing, "average": average}
    return pair_tables(exemplars, memory, [lam], **options)[0]
