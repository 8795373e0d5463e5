"""With whom is each sample mixed? Draws of partners, as indices, for many batches at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradmix.types import PairTable, Partners

CANDIDATES = 4
"""Samples of the best class among which `gradient_refined` chooses."""


class ClassIndex:
    """Where the samples of each class stand in the pool, for uniform draws within a class."""

    def __init__(self, labels: Tensor, num_outputs: int) -> None:
        self.order = labels.argsort(stable=True)
        self.counts = labels.bincount(minlength=num_outputs)  # (C,) samples of every class
        self._start = self.counts.cumsum(0) - self.counts
        self._real_counts = self.counts.double()  # for draws
        self.classes = self.counts.nonzero().squeeze(1)  # (K,) the classes that have samples
        self._host_counts, self._host_start = self.counts.tolist(), self._start.tolist()

    def draw_some(self, label: int, most: int, generator: torch.Generator | None) -> Tensor:
        """Up to `most` different samples of one class, uniformly."""
        count, start = self._host_counts[label], self._host_start[label]
        chosen = torch.randperm(count, generator=generator, device=self.order.device)[:most]
        return self.order[start + chosen]

    def at(self, classes: Tensor, uniform: Tensor) -> Tensor:
        """For each given class (which must have samples) the index of one of its samples.

        `uniform`, float64 from 0 to below 1, says which.
        """
        # In float64 the product stays below the count for any count under 2**53.
        within = (uniform * self._real_counts[classes]).long()
        return self.order[within.add_(self._start[classes])]


class Judgement(Protocol):
    """S⁻ and S* for the batches of a plan; `Tables`, or what answers without a table."""

    def harmful(self, y: Tensor, rows: Tensor) -> Tensor:
        """Whether each row's class and that of its partner in the batch are a pair in S⁻."""

    def best(self, y: Tensor, wanted: Tensor) -> Tensor:
        """S* of each row's class as a label, at least where `wanted`; else any class."""


class Tables(NamedTuple):
    """Pair tables, stacked, and which of them each batch goes by."""

    classes: Tensor  # (K,) the class labels
    negative: Tensor  # (T, K, K) S⁻
    optimal: Tensor  # (T, K) S*
    which: Tensor  # (S, 1)

    @classmethod
    def of(cls, tables: Sequence[PairTable], which: Sequence[int]) -> Tables:
        """Of these tables, `which` says the one of each batch."""
        return cls(
            tables[0].classes,
            torch.stack([table.negative for table in tables]),
            torch.stack([table.optimal for table in tables]),
            torch.tensor(which, device=tables[0].classes.device)[:, None],
        )

    def rows_of(self, y: Tensor) -> Tensor:
        """Where the classes `y` stand among the rows of all tables, (S, B)."""
        return torch.searchsorted(self.classes, y) + self.which * len(self.classes)

    def harmful(self, y: Tensor, rows: Tensor) -> Tensor:
        """Whether each row's class and that of its partner in the batch are a pair in S⁻."""
        number = len(self.classes)
        position = self.rows_of(y)
        pair = position * number + position.gather(1, rows) - self.which * number
        return self.negative.flatten()[pair]

    def best(self, y: Tensor, wanted: Tensor) -> Tensor:
        """S*: for each row's class the label of its best partner."""
        return self.classes[self.optimal.flatten()[self.rows_of(y)]]


def shuffle(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """A random permutation of each batch (Mixup)."""
    return Partners(torch.stack([_permutation(batch, generator) for batch in y]))


def class_balanced(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """From the whole pool, every class equally likely (Balanced-MixUp)."""

    def choice(batch: Tensor) -> Tensor:
        limit = len(index.classes)
        return torch.randint(limit, batch.shape, generator=generator, device=batch.device)

    chosen, uniform = _stacked([(choice(batch), _uniform(batch, generator)) for batch in y])
    return Partners(
        rows=torch.arange(y.shape[1], device=y.device).expand_as(y),
        replaced=torch.ones_like(y, dtype=torch.bool),
        drawn=index.at(index.classes[chosen], uniform),
    )


def gradient(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """A permutation, its pairs in S⁻ re-drawn from S* (Algorithm 1, steps 14 and 16 to 19)."""
    assert tables is not None
    rows, uniform = _stacked(
        [(_permutation(batch, generator), _uniform(batch, generator)) for batch in y]
    )
    harmful = tables.harmful(y, rows)
    return Partners(rows, harmful, index.at(tables.best(y, harmful), uniform))


def gradient_keep_original(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """A permutation, where a sample whose pair is in S⁻ stays itself (the ablation "Original")."""
    assert tables is not None
    rows = shuffle(y, index, tables, generator).rows
    own = torch.arange(y.shape[1], device=y.device)
    return Partners(torch.where(tables.harmful(y, rows), own, rows))


def gradient_refined(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """As `gradient`, by class; of some samples of S* the one is taken whose own score is best."""
    assert tables is not None
    rows = shuffle(y, index, tables, generator).rows
    harmful = tables.harmful(y, rows)
    best = tables.best(y, harmful)
    shape, device = (CANDIDATES, *y.shape), y.device
    uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    best_of = getattr(tables, "best_of", None)
    assert best_of is not None  # a recipe with these partners judges samples
    return Partners(rows, harmful, best_of(torch.stack([index.at(best, u) for u in uniform])))


def gradient_softmax(
    y: Tensor, index: ClassIndex, tables: Judgement | None, generator: torch.Generator | None
) -> Partners:
    """Rows of the batch in proportion to the softmax of their scores, in standard deviations."""
    chances = getattr(tables, "chances", None)
    assert chances is not None  # a recipe with these partners judges samples
    drawn = [torch.multinomial(chance, 1, generator=generator) for chance in chances()]
    return Partners(torch.stack(drawn).squeeze(2))


def _permutation(batch: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randperm(len(batch), generator=generator, device=batch.device)


def _uniform(batch: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(len(batch), generator=generator, device=batch.device, dtype=torch.float64)


def _stacked(draws: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    first, second = zip(*draws, strict=True)
    return torch.stack(first), torch.stack(second)


Draw = Callable[[Tensor, ClassIndex, Judgement | None, torch.Generator | None], Partners]

DRAW: dict[str, Draw] = {
    "shuffle": shuffle,
    "class-balanced": class_balanced,
    "gradient": gradient,
    "gradient-keep-original": gradient_keep_original,
    "gradient-refined": gradient_refined,
    "gradient-softmax": gradient_softmax,
}
