"""Scores of sample and class pairs in closed form: three matrix products, no gradients built.

For samples i and j mixed with ratio λ, the inner product of the memory's gradient with the
gradient of the mixed sample is

    score(i, j) = (softmax(λ z_i + (1−λ) z_j) − λ y_i − (1−λ) y_j) · (λ s_i + (1−λ) s_j)

with s from `gradients.projections`. Because exp(λ z_i + (1−λ) z_j) factors into a_i ⊙ b_j,

    Z = A Bᵀ        N = λ (A⊙S_i) Bᵀ + (1−λ) A (B⊙S_j)ᵀ        score = N / Z − label terms

over all pairs at once. `reference.py` is the same computation by explicit gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.criterion.pairing import PAIRINGS
from gradmix.errors import InputError, UnknownNameError

BLOCK_ELEMENTS = 2**20
"""How many scores are computed at once; about ten such blocks are alive at a time."""


class Scored(NamedTuple):
    """Samples ready to be scored in pairs; leading batch dimensions are allowed."""

    logits: Tensor  # (..., n, C)
    projections: Tensor  # (..., n, C)
    labels: Tensor  # (n,)


def sample_scores(left: Scored, right: Scored, lam: float | Tensor) -> Tensor:
    """Scores of every left sample with every right one, (..., L, R); `lam` weights the left.

    A tensor of ratios has two more dimensions of size 1 at its end than it has batch dimensions.
    """
    a = _shifted_exp(lam * left.logits)
    b = _shifted_exp((1 - lam) * right.logits).mT
    normaliser = a @ b
    scores = (lam * left.projections * a) @ b
    scores += (1 - lam) * (a @ (right.projections.mT * b))
    scores /= normaliser
    # Entries of a and b below the smallest float are lost; where the normaliser is itself
    # that small, what was lost matters, and the softmax is taken of the logits themselves.
    lost = normaliser < torch.finfo(normaliser.dtype).tiny * 1e8
    if lost.any():
        scores[lost] = _expected_projection(left, right, lam, lost)
    return scores - _label_terms(left, right, lam)


def row_scores(left: Scored, right: Scored, lam: Tensor) -> Tensor:
    """Scores of sample pairs row by row, (..., n); `labels` have the rows' shape here.

    `lam` broadcasts to the rows.
    """
    ratio = lam.to(left.logits)[..., None]
    p = torch.lerp(right.logits, left.logits, ratio).softmax(-1)
    s = torch.lerp(right.projections, left.projections, ratio)
    own, other = (s.gather(-1, side.labels[..., None]) for side in (left, right))
    labels = (ratio * own + (1 - ratio) * other).squeeze(-1)
    return (p * s).sum(-1) - labels


def class_scores(
    samples: Scored,
    ratios: Sequence[float],
    pairing: str = "one-to-one",
    block: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """The classes (K,) and, for each ratio, the mean score of the pairs of two classes (G, K, K).

    "one-to-one" takes exemplar k of class a with exemplar k + 1 of class b (cyclically, for k
    up to the larger class), "all-pairs" takes every exemplar of a with every one of b. At most
    about `block` scores are computed at once.
    """
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"lam is {lam}; a mixing ratio lies between 0 and 1")
    if pairing not in PAIRINGS:
        raise UnknownNameError("pairing", pairing, PAIRINGS)
    classes, position, counts = samples.labels.unique(return_inverse=True, return_counts=True)
    every = torch.tensor(ratios, dtype=samples.logits.dtype, device=samples.logits.device)
    parts = every.split(max(1, block // len(classes) ** 2))
    if pairing == "one-to-one":
        scores = [_one_to_one(samples, part, classes, position, counts, block) for part in parts]
    else:
        scores = [_all_pairs(samples, part, position, counts, block) for part in parts]
    return classes, torch.cat(scores)


def _one_to_one(
    samples: Scored, lam: Tensor, classes: Tensor, position: Tensor, counts: Tensor, block: int
) -> Tensor:
    by_class = position.argsort(stable=True)
    start = counts.cumsum(0) - counts
    size = len(classes)
    total = samples.logits.new_zeros(len(lam), size, size)
    larger = torch.maximum(counts[:, None], counts)
    most = int(counts.max())
    step = max(1, block // (len(lam) * size**2))
    for first in range(0, most, step):
        k = torch.arange(first, min(first + step, most), device=counts.device)[:, None]
        left = by_class[start + k % counts]  # (k, K) exemplar k of every class
        right = by_class[start + (k + 1) % counts]
        for rows, columns in _blocks_of_pairs(size, samples.logits.shape[1], block):
            i, j = left[:, rows], right[:, columns]
            scores = sample_scores(  # (G, k, rows, columns)
                Scored(samples.logits[i], samples.projections[i], classes[rows]),
                Scored(samples.logits[j], samples.projections[j], classes[columns]),
                lam[:, None, None, None],
            )
            used = k[:, :, None] < larger[rows, columns]
            total[:, rows, columns] += scores.mul_(used).sum(1)
    return total / larger


def _blocks_of_pairs(classes: int, outputs: int, block: int) -> list[tuple[slice, slice]]:
    """All pairs of classes in squares of up to `block` scores, logits of a side too."""
    side = classes
    if classes**2 > block:
        side = max(1, min(int(block**0.5), block // outputs))
    starts = range(0, classes, side)
    return [(slice(i, i + side), slice(j, j + side)) for i in starts for j in starts]


def _all_pairs(
    samples: Scored, lam: Tensor, position: Tensor, counts: Tensor, block: int
) -> Tensor:
    member = torch.nn.functional.one_hot(position, len(counts)).to(samples.logits)  # (n, K)
    total = samples.logits.new_zeros(len(lam), len(counts), len(counts))
    step = max(1, block // (len(lam) * len(position)))
    for first in range(0, len(position), step):
        some = slice(first, first + step)
        rows = Scored(*(part[some] for part in samples))
        scores = sample_scores(rows, samples, lam[:, None, None])  # (G, rows, n)
        total += member[some].T @ (scores @ member)
    return total / (counts[:, None] * counts)


def _shifted_exp(logits: Tensor) -> Tensor:
    return (logits - logits.amax(dim=-1, keepdim=True)).exp_()


def _label_terms(left: Scored, right: Scored, lam: float | Tensor) -> Tensor:
    """(λ y_i + (1−λ) y_j) · (λ s_i + (1−λ) s_j) for every pair."""
    own_left = left.projections.gather(-1, _as_column(left))  # (..., L, 1) s_i[y_i]
    own_right = right.projections.gather(-1, _as_column(right)).mT  # (..., 1, R) s_j[y_j]
    terms = left.projections.index_select(-1, right.labels)  # (..., L, R) s_i[y_j]
    terms += right.projections.index_select(-1, left.labels).mT
    return terms * (lam * (1 - lam)) + (lam**2 * own_left + (1 - lam) ** 2 * own_right)


def _as_column(samples: Scored) -> Tensor:
    return samples.labels[:, None].expand(*samples.projections.shape[:-1], 1)


def _expected_projection(left: Scored, right: Scored, lam: float | Tensor, where: Tensor) -> Tensor:
    """softmax(λ z_i + (1−λ) z_j) · (λ s_i + (1−λ) s_j) for the chosen pairs, one by one."""
    *batch, i, j = where.nonzero().unbind(1)
    shape = (*where.shape[:-2], -1, left.logits.shape[-1])  # the ratios' dimensions too
    z_left, s_left = (part.expand(shape) for part in left[:2])
    z_right, s_right = (part.expand(shape) for part in right[:2])
    ratios = torch.as_tensor(lam, dtype=z_left.dtype, device=z_left.device).expand(where.shape)
    values = []
    step = max(1, BLOCK_ELEMENTS // left.logits.shape[-1])
    for block in range(0, len(i), step):
        rows = slice(block, block + step)
        at_left = tuple(axis[rows] for axis in (*batch, i))
        at_right = tuple(axis[rows] for axis in (*batch, j))
        ratio = ratios[tuple(axis[rows] for axis in (*batch, i, j))][:, None]
        z = torch.lerp(z_right[at_right], z_left[at_left], ratio)
        s = torch.lerp(s_right[at_right], s_left[at_left], ratio)
        values.append((z.softmax(-1) * s).sum(-1))
    return torch.cat(values)
