"""The criterion for many classes: score a class pair when a batch contains it.

A full table takes time that grows with the cube of the number of classes and memory that grows
with its square. Here S⁻ is computed for the pairs in the batches only, and S* for the classes
whose partner is replaced. Both costs then grow slightly faster than the number of classes, once
the logits are computed (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradmix.criterion.many_classes.shortlist import SHORTLISTS, Clusters, Neighbours
from gradmix.criterion.many_classes.sketch import Sketch, pair_scores
from gradmix.errors import UnknownNameError


class PairsOnDemand:
    """S⁻ and S*, computed for the class pairs that are asked for."""

    def __init__(
        self, sketch: Sketch, ratios: Sequence[float], search: str, block: int | None = None
    ) -> None:
        if search not in SHORTLISTS:
            raise UnknownNameError("search", search, SHORTLISTS)
        self.sketch, self.ratios = sketch, list(ratios)
        self._search, self._block = search, block
        self._best = torch.full((len(ratios), len(sketch.classes)), -1, device=sketch.top.device)
        self._asked = self._negative = 0

    @cached_property
    def _shortlist(self) -> Clusters | Neighbours:
        return SHORTLISTS[self._search](self.sketch)

    @property
    def negative_rate(self) -> float:
        """The share in S⁻ of the pairs asked for; 0 before the first."""
        return self._negative / max(self._asked, 1)

    def score(self, own: Tensor, other: Tensor, lam: Tensor) -> Tensor:
        """Return the scores of class pairs, given as positions among the classes."""
        return pair_scores(self.sketch, own, other, lam, self._block)

    @property
    def number(self) -> int:
        """The number of mixing ratios."""
        return len(self.ratios)

    def harmful(self, which: Tensor, y: Tensor, partner_y: Tensor) -> Tensor:
        """Whether each pair of labels is in S⁻, (S, B)."""
        own, other = (torch.searchsorted(self.sketch.classes, labels) for labels in (y, partner_y))
        table = which.expand_as(own)
        return self.negative(table.flatten(), own.flatten(), other.flatten()).view_as(own)

    def best(self, which: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        """The label S* of each label where `wanted`, (S, B); elsewhere the label itself."""
        own = torch.searchsorted(self.sketch.classes, y[wanted])
        result = y.clone()
        result[wanted] = self.sketch.classes[self.optimal(which.expand_as(y)[wanted], own)]
        return result

    def negative(self, table: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Whether pairs of positions are in S⁻ at the given ratios; each pair is scored once."""
        number = len(self.sketch.classes)
        pairs, back = ((table * number + own) * number + other).unique(return_inverse=True)
        first, other = pairs // number, pairs % number
        harmful = self.score(first % number, other, self._ratios(first // number)) < 0
        self._asked += len(pairs)
        self._negative += int(harmful.sum())
        return harmful[back]

    def optimal(self, table: Tensor, own: Tensor) -> Tensor:
        """Return the position of the best partner of each class; each class is searched once."""
        number = len(self.sketch.classes)
        wanted = (table * number + own).unique()
        wanted = wanted[self._best.flatten()[wanted] < 0]
        if len(wanted):
            self._best.view(-1)[wanted] = self._find(wanted // number, wanted % number)
        return self._best[table, own]

    def _find(self, table: Tensor, own: Tensor) -> Tensor:
        lam = self._ratios(table)
        others = self._shortlist.candidates(own, lam)
        there = others >= 0
        rows = there.nonzero()[:, 0]
        scores = torch.full(others.shape, -torch.inf, device=own.device).to(self.sketch.embeddings)
        scores[there] = self.score(own[rows], others[there], lam[rows])
        return others.gather(1, scores.argmax(1, keepdim=True)).squeeze(1)

    def _ratios(self, table: Tensor) -> Tensor:
        return torch.tensor(self.ratios, dtype=torch.float64, device=table.device)[table]

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the shortlist, which is rebuilt."""
        return {
            "sketch": self.sketch._asdict(),
            "ratios": self.ratios,
            "search": self._search,
            "best": self._best.clone(),
            "asked": [self._asked, self._negative],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], block: int | None = None) -> PairsOnDemand:
        """Rebuild saved pairs."""
        pairs = cls(Sketch(**state["sketch"]), state["ratios"], state["search"], block)
        pairs._best = state["best"].clone()
        pairs._asked, pairs._negative = state["asked"]
        return pairs
