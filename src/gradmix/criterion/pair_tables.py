"""Pair tables: which class pairs harm the memory, and the best partner of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradmix.criterion.many_classes.on_demand import PairsOnDemand
from gradmix.criterion.scores import Exemplars, Scored, class_scores, mean_gradient, projections
from gradmix.errors import InputError
from gradmix.settings import CriterionSettings


@dataclass(frozen=True)
class PairTable:
    """The class pairs that help or harm the memory (Algorithm 1, steps 8 and 9).

    Rows and columns follow `classes`. Pairs are ordered; the mixing ratio weights the row.
    """

    classes: Tensor  # (K,) the class labels
    scores: Tensor  # (K, K) mean inner product of the mixed and the memory's gradient
    negative: Tensor  # (K, K) bool, S⁻: scores strictly below zero
    optimal: Tensor  # (K,) S*: for each row the column of its highest score

    @classmethod
    def from_scores(cls, classes: Tensor, scores: Tensor) -> PairTable:
        """Return the table of the given scores, (K, K)."""
        if scores.shape != (len(classes), len(classes)):
            raise InputError(
                f"scores has shape {tuple(scores.shape)}; "
                f"{len(classes)} classes need ({len(classes)}, {len(classes)})"
            )
        return cls(classes, scores, scores < 0, scores.argmax(dim=1))

    @property
    def negative_rate(self) -> float:
        """The share of class pairs in S⁻."""
        return float(self.negative.to(torch.float64).mean())


class PairTables:
    """S⁻ and S* at several mixing ratios: one full pair table for each.

    `which` (S, 1) names, for each of S batches, the ratio by its number.
    """

    def __init__(self, classes: Tensor, scores: Tensor) -> None:
        self.tables = tuple(PairTable.from_scores(classes, table) for table in scores)
        self.classes = classes  # (K,)
        self.scores = scores  # (T, K, K)
        self._negative = torch.stack([table.negative for table in self.tables])  # (T, K, K)
        self._optimal = torch.stack([table.optimal for table in self.tables])  # (T, K)

    @property
    def number(self) -> int:
        """The number of tables."""
        return len(self.tables)

    @property
    def negative_rate(self) -> float:
        """The share of class pairs in S⁻, averaged over the tables."""
        return sum(table.negative_rate for table in self.tables) / len(self.tables)

    def harmful(self, which: Tensor, y: Tensor, partner_y: Tensor) -> Tensor:
        """Whether each pair of labels is in S⁻, (S, B)."""
        own, other = (torch.searchsorted(self.classes, labels) for labels in (y, partner_y))
        number = len(self.classes)
        return self._negative.flatten()[(which * number + own) * number + other]

    def best(self, which: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        """The label of the best partner of each label, (S, B)."""
        row = which * len(self.classes) + torch.searchsorted(self.classes, y)
        return self.classes[self._optimal.flatten()[row]]

    def state_dict(self) -> dict[str, Any]:
        """The classes and all scores."""
        return {"classes": self.classes, "scores": self.scores}


Pairs = PairTables | PairsOnDemand
"""S⁻ and S* at several mixing ratios: full tables, or scores computed on demand."""


def pair_tables(
    exemplars: Exemplars,
    protected: Tensor,
    ratios: Sequence[float],
    settings: CriterionSettings | None = None,
    *,
    bias: bool = True,
    mask: Tensor | None = None,
) -> PairTables:
    """Return the pair table of all classes for each mixing ratio (Algorithm 1, steps 3 to 9).

    Args:
        exemplars: Samples of all classes.
        protected: Which of them have the gradient ḡ that mixing must not oppose, bool (n,). In
            Algorithm 1 these are the samples in memory.
        ratios: Mixing ratios between 0 and 1.
        settings: How exemplars are paired and gradients averaged.
        bias: Whether the head has a bias.
        mask: Which weights the head has, (C, d); None if it has all. Others have no gradient.
    """
    settings = CriterionSettings() if settings is None else settings
    chosen = Exemplars(*(part[protected] for part in exemplars))
    gradient = mean_gradient(chosen, bias=bias, by_class=settings.by_class)
    if mask is not None:
        gradient = gradient._replace(weight=gradient.weight * mask)
    samples = Scored(
        exemplars.logits, projections(exemplars.embeddings, gradient), exemplars.labels
    )
    block = settings.criterion_block
    return PairTables(*class_scores(samples, ratios, all_pairs=settings.all_pairs, block=block))
