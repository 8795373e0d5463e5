"""S⁻ and S*: which class pairs harm the memory, and the best partner of each class.

`PairSelector.refresh` finds them once per epoch (Algorithm 1, steps 3 to 9): full `PairTables`, or
`PairsOnDemand` for many classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.criterion.embedding import embed_rows
from gradmix.criterion.many_classes.on_demand import PairsOnDemand
from gradmix.criterion.many_classes.sketch import make_sketch
from gradmix.criterion.scores import (
    Exemplars,
    Scored,
    class_scores,
    mean_gradient,
    projections,
    sample_weights,
)
from gradmix.data.pool import ClassIndex, Pool
from gradmix.errors import InputError
from gradmix.models.heads import BlockLinear
from gradmix.models.parallel import whole
from gradmix.ranks import ALONE, Ranks
from gradmix.settings import CriterionSettings
from gradmix.types import LinearHead

MOST_EXACT = 1000
"""Largest number of classes for which "auto" means "exact"; there both cost the same."""


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
        self.number = len(scores)  # T, of tables
        self.classes = classes  # (K,)
        self.scores = scores  # (T, K, K)
        self._optimal = scores.argmax(dim=2)  # (T, K)

    @property
    def negative_rate(self) -> float:
        """The share of class pairs in S⁻, averaged over the tables."""
        return sum(table.negative_rate for table in self.tables) / self.number

    def harmful(self, which: Tensor, y: Tensor, partner_y: Tensor) -> Tensor:
        """Whether each pair of labels is in S⁻, (S, B)."""
        own, other = (torch.searchsorted(self.classes, labels) for labels in (y, partner_y))
        return self.scores[which, own, other] < 0

    def best(self, which: Tensor, y: Tensor, wanted: Tensor) -> Tensor:
        """The label of the best partner of each label, (S, B)."""
        return self.classes[self._optimal[which, torch.searchsorted(self.classes, y)]]

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
    gradient = mean_gradient(chosen, bias=bias, by_class=settings.average == "class")
    if mask is not None:
        gradient = gradient._replace(weight=gradient.weight * mask)
    samples = Scored(
        exemplars.logits, projections(exemplars.embeddings, gradient), exemplars.labels
    )
    block = settings.criterion_block
    all_pairs = settings.pairing == "all-pairs"
    return PairTables(*class_scores(samples, ratios, all_pairs=all_pairs, block=block))


class PairSelector:
    """Computes S⁻ and S* for the current task, as full tables or on demand for many classes.

    Args:
        settings: How the criterion is computed.
        tables: Number of mixing ratios at which pairs are scored; 0 turns the selector off. With
            one, its ratio is drawn at each refresh (Algorithm 1, step 4). Several cover 0 to 1
            evenly, and each batch uses the one nearest its own λ.
        ratio: Parameters of the Beta distribution of λ.
        host: Draws the ratio of a single table.
        generator: Draws exemplars, on the device of the data.
        ranks: The processes that embed the exemplars together.

    Attributes:
        pairs: The result of the last refresh; None before it and without a memory.
    """

    def __init__(
        self,
        settings: CriterionSettings,
        *,
        tables: int,
        ratio: tuple[float, float],
        host: np.random.Generator,
        generator: torch.Generator | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.pairs: Pairs | None = None
        self._settings, self._number, self._ratio = settings, tables, ratio
        self._host, self._generator, self._ranks = host, generator, ranks

    @property
    def tables(self) -> tuple[PairTable, ...]:
        """The full pair tables; none before a refresh and none for many classes."""
        return self.pairs.tables if isinstance(self.pairs, PairTables) else ()

    @property
    def negative_rate(self) -> float | None:
        """The share of class pairs in S⁻; None without pairs."""
        return None if self.pairs is None else self.pairs.negative_rate

    def begin_task(self, pool: Pool, num_outputs: int) -> None:
        """Take the data of a task; the pairs of the previous task are dropped."""
        self._pool, self.pairs = pool, None
        self._new = ClassIndex(pool.y[: pool.num_new], num_outputs)
        self._num_classes = len(pool.y.unique())

    def refresh(self, model: nn.Module, head: nn.Linear, adjustment: Tensor | None = None) -> None:
        """Score all class pairs with the model as it is now (Algorithm 1, steps 3 to 9).

        Without a memory there is nothing to protect and `pairs` stays None.

        Args:
            model: The network.
            head: Its last layer.
            adjustment: What the loss adds to all logits, (C,); None: nothing.
        """
        pool = self._pool
        if not self._number or pool.num_new == len(pool.y):
            return
        index = self._draw_exemplars()
        embeddings = embed_rows(model, head, pool.inputs, index, self._ranks)  # (n, d)
        y, protected = pool.y[index], torch.ones_like(index, dtype=torch.bool)  # (n,) each
        if self._settings.gradient == "memory":
            protected = index >= pool.num_new  # the memory follows the new samples in the pool
        search = self._settings.criterion
        if search == "clusters" or (search == "auto" and self._num_classes > MOST_EXACT):
            self.pairs = self._on_demand(head, adjustment, embeddings, y, protected)
            return
        with torch.no_grad():
            logits = head(embeddings.to(head.weight.dtype)).float()  # (n, C)
        logits = logits if adjustment is None else logits + adjustment
        self.pairs = pair_tables(
            Exemplars(embeddings, logits, y),
            protected,
            self._ratios(),
            self._settings,
            bias=head.bias is not None,
            mask=head.mask if isinstance(head, BlockLinear) else None,
        )

    def _draw_exemplars(self) -> Tensor:
        """Draw pool rows: some samples of every current class, then the whole memory."""
        pool, most = self._pool, self._settings.criterion_exemplars
        classes = self._new.classes.tolist()
        drawn = [self._new.draw(label, most, self._generator) for label in classes]
        memory = torch.arange(pool.num_new, len(pool.y), device=pool.y.device)
        return torch.cat([*drawn, memory])

    def _ratios(self) -> list[float]:
        if self._number == 1:
            return [float(self._host.beta(*self._ratio))]
        return [(k + 0.5) / self._number for k in range(self._number)]

    def _on_demand(
        self,
        head: nn.Linear,
        added: Tensor | None,
        X: Tensor,
        y: Tensor,
        protected: Tensor,
    ) -> PairsOnDemand:
        settings, ratios = self._settings, self._ratios()
        weights = X.new_zeros(len(y))
        by_class = settings.average == "class"
        weights[protected] = sample_weights(y[protected], by_class, X.dtype)
        parts = [whole(part).detach().float() for part in (head.bias, added) if part is not None]
        bias = torch.stack(parts).sum(0) if parts else None
        sketch = make_sketch(
            X,
            y,
            LinearHead(whole(head.weight).detach().float(), bias),
            weights,
            fixed_bias=head.bias is None,
            all_pairs=settings.pairing == "all-pairs",
            generator=self._generator,
            block=settings.criterion_block,
        )
        return PairsOnDemand(sketch, ratios, settings.criterion_block)

    def state_dict(self) -> dict[str, Any]:
        """The pairs of the epoch, on which its remaining batches depend."""
        if self.pairs is None:
            return {}
        kind = "tables" if isinstance(self.pairs, PairTables) else "on_demand"
        return {kind: self.pairs.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved pairs; `begin_task` comes first.

        Raises:
            InputError: If the pairs do not fit the pool or these settings.
        """
        pairs: Pairs | None = None
        if "tables" in state:
            pairs = PairTables(**state["tables"])
        elif "on_demand" in state:
            block = self._settings.criterion_block
            pairs = PairsOnDemand.from_state_dict(state["on_demand"], block)
        if pairs is not None:
            if not torch.equal(pairs.classes, self._pool.y.unique()):
                raise InputError("pairs: the saved pairs belong to other classes")
            if pairs.number != self._number:
                raise InputError(f"pairs: {pairs.number} tables are saved, not {self._number}")
        self.pairs = pairs
