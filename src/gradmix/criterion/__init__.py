"""Which class pairs may be mixed: gradients of the head, scores of pairs, the pair table."""

from __future__ import annotations

from gradmix.criterion.embedding import embed, evaluating, find_head
from gradmix.criterion.gradients import Exemplars, HeadGradient, memory_gradient, projections
from gradmix.criterion.scores import PAIRINGS, Scored, class_scores, sample_scores
from gradmix.types import PairTable

__all__ = [
    "PAIRINGS",
    "Exemplars",
    "HeadGradient",
    "Scored",
    "class_scores",
    "embed",
    "evaluating",
    "find_head",
    "memory_gradient",
    "pair_table",
    "projections",
    "sample_scores",
]


def pair_table(
    exemplars: Exemplars,
    memory: Exemplars,
    lam: float,
    *,
    bias: bool = True,
    pairing: str = "one-to-one",
    average: str = "sample",
) -> PairTable:
    """The pair table of all classes among the exemplars (Algorithm 1, steps 3 to 9)."""
    gradient = memory_gradient(memory, bias=bias, average=average)
    samples = Scored(
        exemplars.logits, projections(exemplars.embeddings, gradient), exemplars.labels
    )
    return PairTable.from_scores(*class_scores(samples, lam, pairing))
