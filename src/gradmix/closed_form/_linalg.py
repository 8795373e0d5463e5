"""Solving linear systems with symmetric positive matrices."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_JITTER = 1e-12  # relative to the mean of the diagonal


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Return matrix⁻¹ · right by Cholesky decomposition.

    A matrix that rounding has made singular gets a multiple of the identity, ten times larger at
    each attempt.

    Args:
        matrix: A symmetric positive semidefinite matrix, (M, M).
        right: The right-hand sides, (M, C).
    """
    scale = max(float(matrix.diagonal().mean()), torch.finfo(matrix.dtype).tiny)
    jitter = 0.0
    while True:
        shifted = matrix.clone()
        shifted.diagonal().add_(jitter * scale)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            return torch.cholesky_solve(right, factor)
        jitter = 10 * jitter if jitter else FIRST_JITTER
