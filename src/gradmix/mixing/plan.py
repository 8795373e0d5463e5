"""Plans: which rows of the pool the batches of an epoch contain, and how they are mixed.

`Mixer.plan` draws a plan and `Mixer.mix` follows it. A checkpoint contains only what was drawn: λ,
places and partners. Functions in `DRAW` draw partners and those in `SHARES` weight labels, for S
batches of B rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradmix.criterion import Pairs
from gradmix.data.pool import ALL, ClassIndex
from gradmix.errors import InputError
from gradmix.types import Partners


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    bottom: int
    left: int
    right: int


Place = Box | int | None  # the box of CutMix, or the mix point of Manifold Mixup


@dataclass(frozen=True)
class Draws:
    """What is drawn to mix S batches of B rows."""

    lam: list[float]  # (S) share of the own input
    table: list[int]  # (S) number of the pair table that each batch uses
    place: list[Place]  # (S) where batches are mixed
    partners: Partners  # (S, B)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        partners = {
            name: part for name, part in self.partners._asdict().items() if part is not None
        }
        place = [list(at) if isinstance(at, Box) else at for at in self.place]
        return {"lam": self.lam, "table": self.table, "place": place, "partners": partners}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Draws:
        """Rebuild saved draws."""
        place = [Box(*at) if isinstance(at, Sequence) else at for at in state["place"]]
        return cls(state["lam"], state["table"], place, Partners(**state["partners"]))


@dataclass(frozen=True)
class Plan:
    """S batches of B rows and how they are mixed."""

    y: Tensor  # (S, B) labels
    index: Tensor | None = None  # (S, B) rows of the pool; None if inputs come from elsewhere
    rows: slice = field(default_factory=lambda: ALL)  # of each batch that this rank computes
    draws: Draws | None = None  # None: the batches stay unmixed
    partner_y: Tensor | None = None  # (S, B) labels of the partners
    shares: Tensor | None = None  # (S, B) share of the own label in the target
    both: Tensor | None = None  # (S, 2, B) pool rows of samples and of partners, if views are fixed

    def needed(self, step: int) -> Tensor:
        """Return the pool rows of this rank's rows of a batch and of their partners."""
        assert self.index is not None
        index, rows = self.index[step], self.rows
        parts = [index[rows]]
        if self.draws is not None:
            other, replaced, drawn = self.draws.partners
            parts.append(index[other[step, rows]])
            if replaced is not None and drawn is not None:
                parts.append(drawn[step, rows][replaced[step, rows]])
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """What was drawn; `Mixer.load_plan` derives the rest."""
        state: dict[str, Any] = {"index": self.index}
        return state if self.draws is None else {**state, "draws": self.draws.state_dict()}


def check_rows(name: str, rows: Tensor, size: int) -> None:
    """Raise InputError if saved rows are not rows of a pool of `size` samples."""
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
        raise InputError(f"{name} has rows outside the pool of {size} samples")


# --- partners ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What partners are drawn for.

    Args:
        y: Labels of S batches, (S, B).
        index: Where the samples of each class stand in the pool.
        generator: Source of randomness, on the device of the labels.
        pairs: S⁻ and S*, for gradient partners; without them no pair is harmful.
        which: The pair table of each batch, (S, 1).
    """

    y: Tensor
    index: ClassIndex
    generator: torch.Generator | None
    pairs: Pairs | None
    which: Tensor

    def harmful(self, partner_y: Tensor) -> Tensor:
        """Whether each sample and a partner of class `partner_y` form a pair in S⁻, (S, B)."""
        if self.pairs is None:
            return torch.zeros_like(self.y, dtype=torch.bool)
        return self.pairs.harmful(self.which, self.y, partner_y)

    def best(self, wanted: Tensor) -> Tensor:
        """The label S* of each sample's class, (S, B); valid where `wanted` is true."""
        if self.pairs is None:
            return self.y
        return self.pairs.best(self.which, self.y, wanted)

    def permutations(self) -> Tensor:
        """A random permutation of each batch, (S, B)."""
        return torch.stack([self._permutation() for _ in self.y])

    def permutations_and_uniforms(self) -> tuple[Tensor, Tensor]:
        """A permutation and float64 numbers in [0, 1) for each batch, drawn batch by batch."""
        drawn = [(self._permutation(), self._uniform()) for _ in self.y]
        permutations, uniform = (torch.stack(part) for part in zip(*drawn, strict=True))
        return permutations, uniform

    def classes_and_uniforms(self) -> tuple[Tensor, Tensor]:
        """A class of the pool, all equally likely, and a number in [0, 1) for each row."""
        drawn = [(self._choice(), self._uniform()) for _ in self.y]
        chosen, uniform = (torch.stack(part) for part in zip(*drawn, strict=True))
        return self.index.classes[chosen], uniform

    def _permutation(self) -> Tensor:
        return torch.randperm(self.y.shape[1], generator=self.generator, device=self.y.device)

    def _choice(self) -> Tensor:
        shape, limit = self.y.shape[1:], len(self.index.classes)
        return torch.randint(limit, shape, generator=self.generator, device=self.y.device)

    def _uniform(self) -> Tensor:
        shape, device = self.y.shape[1:], self.y.device
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device=device)


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


# --- boxes and labels ---------------------------------------------------------------------------


def draw_box(lam: float, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Box, float]:
    """Draw CutMix's box for images of `shape` (C, H, W).

    The box has the area 1 − λ and a centre uniform over the pixels. It is clipped to the image.

    Args:
        lam: λ, the share of the image that the box leaves, before it is clipped.
        shape: Shape of one image, (C, H, W).
        rng: Draws the centre.

    Returns:
        The box, and the share of the image outside it, which becomes λ.

    Raises:
        InputError: If samples are not images.
    """
    if len(shape) != 3:
        raise InputError(f"cutmix needs images (N, C, H, W); these inputs have shape (N, *{shape})")
    _, height, width = shape
    side = float(np.sqrt(1 - lam))
    top, bottom = _interval(int(rng.integers(height)), int(height * side), height)
    left, right = _interval(int(rng.integers(width)), int(width * side), width)
    outside = 1 - (bottom - top) * (right - left) / (height * width)
    return Box(top, bottom, left, right), outside


def _interval(centre: int, size: int, limit: int) -> tuple[int, int]:
    return max(centre - size // 2, 0), min(centre + size // 2, limit)


KAPPA = 3.0  # Remix: one class is much rarer if the other has this many times its samples


def proportional(
    y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, threshold: float
) -> Tensor:
    """Return λ for every label (Mixup); the arguments are those of `remix`."""
    return lam.to(torch.float32)[:, None].expand_as(y)


def remix(y: Tensor, partner_y: Tensor, lam: Tensor, counts: Tensor, threshold: float) -> Tensor:
    """Return λ, except that a much rarer class takes the whole label (Remix).

    Args:
        y: Labels of S batches, (S, B).
        partner_y: Labels of their partners, (S, B).
        lam: λ of each batch, (S,).
        counts: Samples of each class in the pool, (C,).
        threshold: τ; the rarer class takes the label if the other's share of the input is below it.

    Returns:
        The share of the own label in each target, (S, B).
    """
    lam = lam[:, None]
    counts = counts.to(torch.float32)
    own, other = counts[y], counts[partner_y]
    shares = lam.to(torch.float32).expand_as(y)
    shares = shares.masked_fill((own >= KAPPA * other) & (lam < threshold), 0.0)
    return shares.masked_fill_((other >= KAPPA * own) & (1 - lam < threshold), 1.0)


SHARES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "proportional": proportional,
    "remix": remix,
}
"""The label rules by name."""
