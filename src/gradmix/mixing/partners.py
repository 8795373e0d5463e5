"""Partners: the sample that each sample is mixed with.

Each function draws partners for S batches of B rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradmix.criterion.selector import Pairs
from gradmix.data.pool import ClassIndex
from gradmix.types import Partners


class Request:
    """What partners are drawn for.

    Args:
        y: Labels of S batches, (S, B).
        index: Where the samples of each class stand in the pool.
        generator: Source of randomness, on the device of the labels.
        pairs: S⁻ and S*, for gradient partners; without them no pair is harmful.
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

    def harmful(self, partner_y: Tensor) -> Tensor:
        """Whether each sample and a partner of class `partner_y` form a pair in S⁻, (S, B)."""
        if self._pairs is None or self._which is None:
            return torch.zeros_like(self.y, dtype=torch.bool)
        return self._pairs.harmful(self._which, self.y, partner_y)

    def best(self, wanted: Tensor) -> Tensor:
        """The label S* of each sample's class, (S, B); valid where `wanted` is true."""
        if self._pairs is None or self._which is None:
            return self.y
        return self._pairs.best(self._which, self.y, wanted)

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
    return _from_pool(request, *request.classes_and_uniforms())


def _from_pool(request: Request, classes: Tensor, uniform: Tensor) -> Partners:
    """Return partners of the given classes, all from outside the batch."""
    y = request.y
    return Partners(
        rows=torch.arange(y.shape[1], device=y.device).expand_as(y),
        replaced=torch.ones_like(y, dtype=torch.bool),
        drawn=request.index.at(classes, uniform),
    )


def gradient(request: Request) -> Partners:
    """Draw a permutation and replace the pairs in S⁻ by S* (Algorithm 1, steps 14, 16 to 19)."""
    rows, uniform = request.permutations_and_uniforms()
    harmful = request.harmful(request.y.gather(1, rows))
    return Partners(rows, harmful, request.index.at(request.best(harmful), uniform))


def gradient_class_balanced(request: Request) -> Partners:
    """Draw as `class_balanced` and replace the pairs in S⁻ by S* (another step 14).

    The draws equal those of `class_balanced`, so the two differ only in the replacements.
    """
    classes, uniform = request.classes_and_uniforms()
    harmful = request.harmful(classes)
    return _from_pool(request, torch.where(harmful, request.best(harmful), classes), uniform)


def gradient_keep_original(request: Request) -> Partners:
    """Draw a permutation; samples of pairs in S⁻ stay unmixed (the ablation "Original")."""
    rows = request.permutations()
    own = torch.arange(rows.shape[1], device=rows.device)
    return Partners(torch.where(request.harmful(request.y.gather(1, rows)), own, rows))


def _stack(draws: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    first, second = zip(*draws, strict=True)
    return torch.stack(first), torch.stack(second)


DRAW: dict[str, Callable[[Request], Partners]] = {
    "shuffle": shuffle,
    "class-balanced": class_balanced,
    "gradient": gradient,
    "gradient-class-balanced": gradient_class_balanced,
    "gradient-keep-original": gradient_keep_original,
}
"""The ways to draw partners, by name."""

DRAW_FROM_POOL = ("class-balanced", "gradient", "gradient-class-balanced")
"""The ways that take partners from outside the batch."""

DRAW_FROM_BATCH = ("shuffle", "gradient-keep-original")
"""The ways that take partners from the batch itself; a plugin may do either."""
