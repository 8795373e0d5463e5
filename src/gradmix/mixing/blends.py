"""Blends and labels: how two samples are combined, and how much of each label the target contains.

Inputs are combined as a whole, in a pasted box or on hidden states. A label rule takes the own
labels (S, B), the labels of the partners (S, B), the mixing ratio of each batch (S,), the number of
training samples of each class (C,) and the threshold τ. It returns shares from 0 to 1, (S, B).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradmix.errors import InputError


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    bottom: int
    left: int
    right: int


def linear(x: Tensor, partners: Tensor, lam: float) -> Tensor:
    """Return λ x + (1−λ) x of the partner (Eq. 2); the result overwrites `partners`.

    Args:
        x: Inputs, (B, …).
        partners: Inputs of the partners, row by row, (B, …).
        lam: λ, the share of the own input.
    """
    return partners.lerp_(x, lam)


BLEND: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"linear": linear}
"""The blends of whole inputs, (B, …), by name; CutMix and Manifold Mixup need more than λ."""


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


def cutmix(x: Tensor, partners: Tensor, box: Box) -> Tensor:
    """Return `x` with the box of each partner pasted in.

    Args:
        x: Images, (B, C, H, W).
        partners: Images of the partners, row by row, (B, C, H, W).
        box: The box, the same in all images.
    """
    mixed = x.clone()
    top, bottom, left, right = box
    mixed[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    return mixed


def manifold_in_batch(rows: Tensor, lam: float) -> Callable[[Tensor], Tensor]:
    """Return a function that mixes hidden states with other rows of the batch (Manifold Mixup).

    Args:
        rows: Row of each sample's partner in the batch, (B,).
        lam: λ, the share of the own hidden state.
    """
    return lambda h: torch.lerp(h.index_select(0, rows), h, lam)


def manifold_from_outside(lam: float) -> Callable[[Tensor], Tensor]:
    """Return a function that mixes the first half of the hidden states with the second half.

    The second half are partners from outside the batch.
    """

    def mix(h: Tensor) -> Tensor:
        own, other = h.chunk(2)
        return torch.lerp(other, own, lam)

    return mix


# --- labels ---------------------------------------------------------------------------------------

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
