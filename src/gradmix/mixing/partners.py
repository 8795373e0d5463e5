"""With whom is each sample mixed? Draws of partners, as indices, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradmix.types import PairTable, Partners


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

    def draw(self, classes: Tensor, generator: torch.Generator | None) -> Tensor:
        """For each given class (which must have samples) the index of one of its samples."""
        # In float64, rand() < 1 keeps the product below the count for any count under 2**53.
        uniform = torch.rand(
            classes.shape, generator=generator, device=classes.device, dtype=torch.float64
        )
        within = uniform.mul_(self._real_counts.index_select(0, classes)).long()
        return self.order.index_select(0, within.add_(self._start.index_select(0, classes)))


def shuffle(
    y: Tensor, index: ClassIndex, pairs: PairTable | None, generator: torch.Generator | None
) -> Partners:
    """A random permutation of the batch (Mixup)."""
    return Partners(torch.randperm(len(y), generator=generator, device=y.device))


def class_balanced(
    y: Tensor, index: ClassIndex, pairs: PairTable | None, generator: torch.Generator | None
) -> Partners:
    """From the whole pool, every class equally likely (Balanced-MixUp)."""
    choice = torch.randint(len(index.classes), y.shape, generator=generator, device=y.device)
    return Partners(
        rows=torch.arange(len(y), device=y.device),
        replaced=torch.ones_like(y, dtype=torch.bool),
        drawn=index.draw(index.classes[choice], generator),
    )


def gradient(
    y: Tensor, index: ClassIndex, pairs: PairTable | None, generator: torch.Generator | None
) -> Partners:
    """A permutation, its pairs in S⁻ re-drawn from S* (Algorithm 1, steps 14 and 16 to 19)."""
    assert pairs is not None
    rows = torch.randperm(len(y), generator=generator, device=y.device)
    position = pairs.positions(y)
    best = pairs.labels(pairs.optimal.index_select(0, position))
    return Partners(rows, _in_negative(pairs, position, rows), index.draw(best, generator))


def gradient_keep_original(
    y: Tensor, index: ClassIndex, pairs: PairTable | None, generator: torch.Generator | None
) -> Partners:
    """A permutation, where a sample whose pair is in S⁻ stays itself (the ablation "Original")."""
    assert pairs is not None
    rows = torch.randperm(len(y), generator=generator, device=y.device)
    position = pairs.positions(y)
    negative = _in_negative(pairs, position, rows)
    return Partners(torch.where(negative, torch.arange(len(y), device=y.device), rows))


def _in_negative(pairs: PairTable, position: Tensor, rows: Tensor) -> Tensor:
    """Whether each row's class and its partner's are a pair in S⁻, (B,)."""
    pair = position * len(pairs.classes) + position.index_select(0, rows)
    return pairs.negative.flatten().index_select(0, pair)


DRAW: dict[
    str, Callable[[Tensor, ClassIndex, PairTable | None, torch.Generator | None], Partners]
] = {
    "shuffle": shuffle,
    "class-balanced": class_balanced,
    "gradient": gradient,
    "gradient-keep-original": gradient_keep_original,
}
