"""The criterion in closed form: last-layer gradients and scores of sample and class pairs.

For embedding X, logits z and one-hot label y, the cross-entropy gradient of a linear head is
(softmax(z) − y) for the bias and (softmax(z) − y) Xᵀ for the weight (the paper's Lemma).

Samples i and j are mixed with ratio λ. The inner product of the memory's gradient (ḡ_b, Ḡ_w) and
the gradient of the mixed sample is

    score(i, j) = (softmax(λ z_i + (1−λ) z_j) − λ y_i − (1−λ) y_j) · (λ s_i + (1−λ) s_j)

with s = ḡ_b + Ḡ_w X. Because exp(λ z_i + (1−λ) z_j) factors into a_i ⊙ b_j,

    Z = A Bᵀ        N = λ (A⊙S_i) Bᵀ + (1−λ) A (B⊙S_j)ᵀ        score = N / Z − label terms

for all pairs at once: three matrix products and no gradients. `reference.py` computes the same with
explicit gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.errors import InputError

BLOCK_ELEMENTS = 2**20
"""Number of scores computed at once; about ten such blocks are in memory at a time."""


class Exemplars(NamedTuple):
    """Samples as the head sees them."""

    embeddings: Tensor  # (n, d) inputs of the head
    logits: Tensor  # (n, C) outputs of the head
    labels: Tensor  # (n,) int64, each an output of the head


class HeadGradient(NamedTuple):
    """The mean gradient of some samples with respect to the head, (ḡ_b, Ḡ_w)."""

    weight: Tensor  # (C, d)
    bias: Tensor | None  # (C,); None for a head without bias


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """Return softmax(z) − y for every sample, (n, C)."""
    delta = logits.softmax(dim=1)
    delta[torch.arange(len(labels), device=labels.device), labels] -= 1
    return delta


def mean_gradient(samples: Exemplars, *, bias: bool = True, by_class: bool = False) -> HeadGradient:
    """Return ḡ, the mean gradient of some samples (Algorithm 1, step 3).

    Args:
        samples: The samples, for Algorithm 1 those in memory.
        bias: Whether the head has a bias.
        by_class: Average over the means of the classes (Eq. 5) instead of over the samples
            (Algorithm 1). They differ if classes have unequal numbers of samples.
    """
    weights = sample_weights(samples.labels, by_class, samples.logits.dtype)
    delta = residuals(samples.logits, samples.labels).mul_(weights[:, None])  # (n, C)
    return HeadGradient(delta.T @ samples.embeddings, delta.sum(dim=0) if bias else None)


def sample_weights(
    labels: Tensor, by_class: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the weight of each sample in the mean gradient, (n,); they sum to 1.

    Args:
        labels: Labels of the samples, (n,).
        by_class: Whether classes have equal weights, instead of samples.
        dtype: Type of the weights.

    Raises:
        InputError: If there are no samples.
    """
    if len(labels) == 0:
        raise InputError("the memory is empty; its gradient needs at least one sample")
    if not by_class:
        return torch.full(labels.shape, 1 / len(labels), dtype=dtype, device=labels.device)
    _, position, counts = labels.unique(return_inverse=True, return_counts=True)
    each: Tensor = 1 / (len(counts) * counts.to(dtype))
    return each[position]


def projections(embeddings: Tensor, gradient: HeadGradient) -> Tensor:
    """Return s = ḡ_b + Ḡ_w X for every sample, (n, C).

    The inner product of ḡ_buf and the gradient δ ⊗ (1, X) of a sample is δ · s. The criterion
    therefore needs s and no other function of the embedding.

    Args:
        embeddings: (n, d).
        gradient: ḡ_buf.
    """
    s = embeddings @ gradient.weight.T
    return s if gradient.bias is None else s + gradient.bias


class Scored(NamedTuple):
    """Samples ready to be scored in pairs; leading batch dimensions are allowed."""

    logits: Tensor  # (..., n, C)
    projections: Tensor  # (..., n, C)
    labels: Tensor  # (n,)


def sample_scores(left: Scored, right: Scored, lam: float | Tensor) -> Tensor:
    """Return the score of every left sample with every right sample, (..., L, R).

    Args:
        left: Samples that the mixing ratio weights.
        right: Their partners.
        lam: The mixing ratio. A tensor of ratios ends with two dimensions of size 1.
    """
    a = _shifted_exp(lam * left.logits)
    b = _shifted_exp((1 - lam) * right.logits).mT
    normaliser = a @ b
    scores = (lam * left.projections * a) @ b
    scores += (1 - lam) * (a @ (right.projections.mT * b))
    scores /= normaliser
    # Entries of a and b below the smallest float become 0. Where the normaliser itself is that
    # small, the loss matters: take the softmax of the mixed logits there.
    lost = normaliser < torch.finfo(normaliser.dtype).tiny * 1e8
    if lost.any():
        scores[lost] = _expected_projection(left, right, lam, lost)
    return scores - _label_terms(left, right, lam)


def class_scores(
    samples: Scored,
    ratios: Sequence[float],
    *,
    all_pairs: bool = False,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the classes (K,) and, for each of G ratios, the mean score of class pairs (G, K, K).

    Args:
        samples: The exemplars of all classes.
        ratios: Mixing ratios between 0 and 1.
        all_pairs: Pair every exemplar of class a with every exemplar of b. Otherwise exemplar k
            of a is paired with exemplar k + 1 of b, cyclically, up to the size of the larger.
        block: Largest number of scores computed at once; by default `BLOCK_ELEMENTS`.
    """
    for lam in ratios:
        if not 0 <= lam <= 1:
            raise InputError(f"lam is {lam}; a mixing ratio lies between 0 and 1")
    block = BLOCK_ELEMENTS if block is None else block
    classes, position, counts = samples.labels.unique(return_inverse=True, return_counts=True)
    every = torch.tensor(ratios, dtype=samples.logits.dtype, device=samples.logits.device)
    score = _all_pairs if all_pairs else _one_to_one
    parts = every.split(max(1, block // len(classes) ** 2))
    return classes, torch.cat([score(samples, part, position, counts, block) for part in parts])


def _one_to_one(
    samples: Scored, lam: Tensor, position: Tensor, counts: Tensor, block: int
) -> Tensor:
    by_class = position.argsort(stable=True)
    start = counts.cumsum(0) - counts
    size, classes = len(counts), samples.labels[by_class[start]]
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
    """Return all class pairs as squares of at most `block` scores, or logits of one side."""
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
    """Return (λ y_i + (1−λ) y_j) · (λ s_i + (1−λ) s_j) for every pair, (..., L, R)."""
    own_left, own_right = (  # (..., L, 1) s_i[y_i] and (..., R, 1) s_j[y_j]
        side.projections.gather(-1, side.labels[:, None].expand(*side.projections.shape[:-1], 1))
        for side in (left, right)
    )
    terms = left.projections.index_select(-1, right.labels)  # (..., L, R) s_i[y_j]
    terms += right.projections.index_select(-1, left.labels).mT
    return terms * (lam * (1 - lam)) + (lam**2 * own_left + (1 - lam) ** 2 * own_right.mT)


def _expected_projection(left: Scored, right: Scored, lam: float | Tensor, where: Tensor) -> Tensor:
    """Return softmax(λ z_i + (1−λ) z_j) · (λ s_i + (1−λ) s_j) where the mask `where` is true."""
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
