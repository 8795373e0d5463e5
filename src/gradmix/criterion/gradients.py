"""Last-layer gradients: what the head would learn from samples, without a backward pass.

With embedding X, logits z and one-hot label y, the cross-entropy gradient of a linear head is
(softmax(z) − y) for the bias and (softmax(z) − y) Xᵀ for the weight (the paper's Lemma).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradmix.errors import InputError, UnknownNameError


class Exemplars(NamedTuple):
    """Samples as the head sees them."""

    embeddings: Tensor  # (n, d) inputs of the head
    logits: Tensor  # (n, C) its outputs
    labels: Tensor  # (n,) int64, each an output of the head


class HeadGradient(NamedTuple):
    """The mean gradient of some samples with respect to the head, (ḡ_b, Ḡ_w)."""

    weight: Tensor  # (C, d)
    bias: Tensor | None  # (C,), None for a head without bias


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax(z) − y for every sample, (n, C)."""
    delta = logits.softmax(dim=1)
    delta[torch.arange(len(labels), device=labels.device), labels] -= 1
    return delta


def memory_gradient(
    memory: Exemplars, *, bias: bool = True, average: str = "sample"
) -> HeadGradient:
    """ḡ_buf, the mean gradient of the memory (Algorithm 1, step 3).

    `average="sample"` is the mean over the memory's samples, as in Algorithm 1;
    `average="class"` the mean over classes of each class's mean, as in Eq. 5. They differ
    only when classes have unequal numbers of exemplars.
    """
    weights = memory_weights(memory.labels, average, memory.logits.dtype)
    delta = residuals(memory.logits, memory.labels).mul_(weights[:, None])
    return HeadGradient(delta.T @ memory.embeddings, delta.sum(dim=0) if bias else None)


def memory_weights(
    labels: Tensor, average: str = "sample", dtype: torch.dtype = torch.float32
) -> Tensor:
    """What each sample of a memory counts in its gradient, (n,), summing to 1."""
    if len(labels) == 0:
        raise InputError("the memory is empty; its gradient needs at least one sample")
    if average == "sample":
        return torch.full(labels.shape, 1 / len(labels), dtype=dtype, device=labels.device)
    if average == "class":
        _, position, counts = labels.unique(return_inverse=True, return_counts=True)
        each: Tensor = 1 / (len(counts) * counts.to(dtype))
        return each[position]
    raise UnknownNameError("average", average, ("sample", "class"))


def projections(embeddings: Tensor, gradient: HeadGradient) -> Tensor:
    """The vector s = ḡ_b + Ḡ_w X of every sample, (n, C).

    The inner product of ḡ_buf with the gradient δ ⊗ (1, X) of any sample is δ · s, so s
    is all that the criterion needs to know of an embedding.
    """
    s = embeddings @ gradient.weight.T
    return s if gradient.bias is None else s + gradient.bias
