"""How are two samples combined, and where? On inputs, in a pasted box, or on hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradmix.errors import InputError


class Blended(NamedTuple):
    """Inputs of the network, the λ really used, and what is left for the model to mix."""

    x: Tensor
    lam: float
    mix: Callable[[Tensor], Tensor] | None = None
    at: int | None = None


def linear(x: Tensor, partners: Tensor, lam: float) -> Blended:
    """λ x + (1−λ) x of the partner (Eq. 2); the result takes the place of `partners`."""
    return Blended(partners.lerp_(x, lam), lam)


def cutmix(x: Tensor, partners: Tensor, lam: float, rng: np.random.Generator) -> Blended:
    """A box of the partner is pasted in; λ becomes the share of the image that is left.

    The box has the area 1 − λ, its centre is uniform over the pixels, and what lies outside
    the image is cut off. One box per batch.
    """
    if x.ndim != 4:
        raise InputError(
            f"cutmix needs images (N, C, H, W); these inputs have shape {tuple(x.shape)}"
        )
    height, width = x.shape[2:]
    side = float(np.sqrt(1 - lam))
    top, bottom = _interval(int(rng.integers(height)), int(height * side), height)
    left, right = _interval(int(rng.integers(width)), int(width * side), width)
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    return Blended(mixed, 1 - (bottom - top) * (right - left) / (height * width))


def _interval(centre: int, size: int, limit: int) -> tuple[int, int]:
    return max(centre - size // 2, 0), min(centre + size // 2, limit)


def manifold_in_batch(x: Tensor, rows: Tensor, lam: float, at: int) -> Blended:
    """Hidden states of layer `at` are mixed with those of other rows (Manifold Mixup)."""
    return Blended(x, lam, lambda h: torch.lerp(h.index_select(0, rows), h, lam), at)


def manifold_from_outside(x: Tensor, partners: Tensor, lam: float, at: int) -> Blended:
    """The same with partners from outside the batch, which pass the first layers beside it."""

    def mix(h: Tensor) -> Tensor:
        own, other = h.chunk(2)
        return torch.lerp(other, own, lam)

    return Blended(torch.cat([x, partners]), lam, mix, at)
