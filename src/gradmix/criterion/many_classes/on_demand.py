"""The criterion for many classes: pairs are scored when batches meet them, none is stored.

S⁻ is asked for the pairs of a plan, S* for the classes among them that need a replacement. The
exact criterion has a table of all pairs, whose time grows with the cube of the number of classes
and whose memory with its square; here both grow little faster than the number itself once the
logits are there (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradmix.criterion.many_classes.shortlist import SHORTLISTS, Clusters, Neighbours, require_faiss
from gradmix.criterion.many_classes.sketch import BLOCK_ELEMENTS, Sketch, pair_scores
from gradmix.errors import UnknownNameError

SEARCHES = ("auto", "exact", *SHORTLISTS)
MOST_EXACT = 1000
"""Classes up to which "auto" is exact; there both cost about the same."""


def choose_search(search: str, classes: int) -> str:
    """The way that "auto" means for a number of classes; any other is itself."""
    if search not in SEARCHES:
        raise UnknownNameError("criterion", search, SEARCHES)
    if search == "neighbours":
        require_faiss()
    if search != "auto":
        return search
    return "exact" if classes <= MOST_EXACT else "clusters"


class PairsOnDemand:
    """S⁻ and S* of the pairs that are asked for, each at one of some mixing ratios."""

    def __init__(
        self,
        sketch: Sketch,
        ratios: Sequence[float],
        search: str,
        pairing: str = "one-to-one",
        block: int = BLOCK_ELEMENTS,
    ) -> None:
        self.sketch, self.ratios = sketch, list(ratios)
        self._search, self._pairing, self._block = search, pairing, block
        self._best = torch.full((len(ratios), len(sketch.classes)), -1, device=sketch.top.device)
        self._asked = self._negative = 0

    @cached_property
    def _shortlist(self) -> Clusters | Neighbours:
        return SHORTLISTS[self._search](self.sketch)

    @property
    def negative_rate(self) -> float:
        """The share in S⁻ of the pairs asked for; 0 before any was."""
        return self._negative / max(self._asked, 1)

    def score(self, own: Tensor, other: Tensor, lam: Tensor) -> Tensor:
        """Scores of class pairs, given by their places among the classes."""
        return pair_scores(self.sketch, own, other, lam, self._pairing, self._block)

    def for_batches(self, which: Sequence[int]) -> BatchPairs:
        """For batches of which each goes by the ratio that `which` says."""
        return BatchPairs(self, torch.tensor(which, device=self.sketch.top.device)[:, None])

    def negative(self, table: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """Whether pairs of places are in S⁻ at the given ratios; every pair is scored once."""
        number = len(self.sketch.classes)
        pairs, back = ((table * number + own) * number + other).unique(return_inverse=True)
        first, other = pairs // number, pairs % number
        harmful = self.score(first % number, other, self._ratios(first // number)) < 0
        self._asked += len(pairs)
        self._negative += int(harmful.sum())
        return harmful[back]

    def optimal(self, table: Tensor, own: Tensor) -> Tensor:
        """The place of the best partner found for each of these; every class is searched once."""
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
        """All of it; the shortlist is made anew."""
        return {
            "sketch": self.sketch._asdict(),
            "ratios": self.ratios,
            "search": self._search,
            "best": self._best.clone(),
            "asked": [self._asked, self._negative],
        }

    @classmethod
    def from_state_dict(
        cls, state: dict[str, Any], pairing: str, block: int = BLOCK_ELEMENTS
    ) -> PairsOnDemand:
        """As it was saved."""
        sketch = Sketch(**state["sketch"])
        pairs = cls(sketch, state["ratios"], state["search"], pairing, block)
        pairs._best = state["best"].clone()
        pairs._asked, pairs._negative = state["asked"]
        return pairs


class BatchPairs:
    """What draws of partners ask, as `mixing.partners.Tables` answers it."""

    def __init__(self, pairs: PairsOnDemand, which: Tensor) -> None:
        self._pairs, self._which = pairs, which  # (S, 1)

    def harmful(self, y: Tensor, rows: Tensor) -> Tensor:
        """Whether each row's class and that of its partner in the batch are a pair in S⁻."""
        own = torch.searchsorted(self._pairs.sketch.classes, y)
        table, other = self._which.expand_as(own), own.gather(1, rows)
        found = self._pairs.negative(table.flatten(), own.flatten(), other.flatten())
        return found.view_as(own)

    def best(self, y: Tensor, wanted: Tensor) -> Tensor:
        """S* where `wanted`, as labels; elsewhere the class itself."""
        classes = self._pairs.sketch.classes
        own = torch.searchsorted(classes, y[wanted])
        result = y.clone()
        result[wanted] = classes[self._pairs.optimal(self._which.expand_as(y)[wanted], own)]
        return result
