"""Partners: the sample that each sample is mixed with.

Each function draws partners for S batches of B rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradmix.criterion.pair_tables import Pairs
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.types import Partners


class Request:
    """What partners are drawn for.

    Args:
        y: Labels of S batches, (S, B).
        index: Where the samples of each class stand in the pool.
        generator: Source of randomness, on the device of the labels.
        pairs: S⁻ and S*; only gradient partners need them.
        which: The pair table of each batch, (S, 1).
    """

    def __init__(
        self,
        y: Tensor,
        index: ClassIndex,
        generator: torch.Generator | None,
        pairs: Pairs | None = None,
        which: Tensor | None = None,
    ) -> None:
        self.y, self.index, self.generator = y, index, generator
        self._pairs, self._which = pairs, which

    def harmful(self, rows: Tensor) -> Tensor:
        """Whether each sample and the sample at `rows` of its batch form a pair in S⁻, (S, B)."""
        pairs, which = self._need()
        return pairs.harmful(which, self.y, self.y.gather(1, rows))

    def best(self, wanted: Tensor) -> Tensor:
        """The label S* of each sample's class, (S, B); valid where `wanted` is true."""
        pairs, which = self._need()
        return pairs.best(which, self.y, wanted)

    def _need(self) -> tuple[Pairs, Tensor]:
        if self._pairs is None or self._which is None:
            raise InputError("gradient partners need the pairs of a PairSelector; refresh it first")
        return self._pairs, self._which

    def permutations(self) -> Tensor:
        """A random permutation of each batch, (S, B)."""
        return torch.stack([self._permutation(batch) for batch in self.y])

    def permutations_and_uniforms(self) -> tuple[Tensor, Tensor]:
        """A permutation and float64 numbers in [0, 1) for each batch, drawn batch by batch."""
        return _stack([(self._permutation(y), self._uniform(y)) for y in self.y])

    def classes_and_uniforms(self) -> tuple[Tensor, Tensor]:
        """A class of the pool, all equally likely, and a number in [0, 1) for each row."""
        chosen, uniform = _stack([(self._choice(y), self._uniform(y)) for y in self.y])
        return self.index.classes[chosen], uniform

    def _permutation(self, y: Tensor) -> Tensor:
        return torch.randperm(len(y), generator=self.generator, device=y.device)

    def _choice(self, y: Tensor) -> Tensor:
        limit = len(self.index.classes)
        return torch.randint(limit, y.shape, generator=self.generator, device=y.device)

    def _uniform(self, y: Tensor) -> Tensor:
        kind = {"dtype": torch.float64, "device": y.device}
        return torch.rand(len(y), generator=self.generator, **kind)  # type: ignore[call-overload,no-any-return]


def shuffle(request: Request) -> Partners:
    """Draw a random permutation of each batch (Mixup)."""
    return Partners(request.permutations())


def class_balanced(request: Request) -> Partners:
    """Draw from the whole pool with every class equally likely (Balanced-MixUp)."""
    classes, uniform = request.classes_and_uniforms()
    y = request.y
    return Partners(
        rows=torch.arange(y.shape[1], device=y.device).expand_as(y),
        replaced=torch.ones_like(y, dtype=torch.bool),
        drawn=request.index.at(classes, uniform),
    )


def gradient(request: Request) -> Partners:
    """Draw a permutation and replace the pairs in S⁻ by S* (Algorithm 1, steps 14, 16 to 19)."""
    rows, uniform = request.permutations_and_uniforms()
    harmful = request.harmful(rows)
    return Partners(rows, harmful, request.index.at(request.best(harmful), uniform))


def gradient_keep_original(request: Request) -> Partners:
    """Draw a permutation; samples of pairs in S⁻ stay unmixed (the ablation "Original")."""
    rows = request.permutations()
    own = torch.arange(rows.shape[1], device=rows.device)
    return Partners(torch.where(request.harmful(rows), own, rows))


def _stack(draws: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    first, second = zip(*draws, strict=True)
    return torch.stack(first), torch.stack(second)


DRAW: dict[str, Callable[[Request], Partners]] = {
    "shuffle": shuffle,
    "class-balanced": class_balanced,
    "gradient": gradient,
    "gradient-keep-original": gradient_keep_original,
}
"""The ways to draw partners, by name."""

DRAW_FROM_POOL = ("class-balanced", "gradient")
"""The ways that take partners from outside the batch."""
