"""Blends: how two samples are combined, on inputs, in a pasted box or on hidden states."""

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
