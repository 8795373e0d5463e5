"""Algorithm 1, steps 3 to 9, as published: explicit gradients and loops over class pairs.

Tests compare `scores.py` with it; nothing else uses it. One form differs, with the same value:
the paper's ŷ_ij ∝ p^λ q^(1−λ) is computed as the softmax of the interpolated logits, which avoids
0⁰ and underflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradmix.criterion.scores import Exemplars
from gradmix.criterion.selector import PairTable
from gradmix.settings import CriterionSettings


def reference_pair_table(
    exemplars: Exemplars,
    protected: Tensor,
    lam: float,
    settings: CriterionSettings | None = None,
    *,
    bias: bool = True,
) -> PairTable:
    """Return the pair table of all classes among the exemplars; see `pair_tables`."""
    settings = CriterionSettings() if settings is None else settings
    num_outputs = exemplars.logits.shape[1]
    one_hot = torch.eye(num_outputs, dtype=exemplars.logits.dtype, device=exemplars.logits.device)

    # Step 3: ḡ, the average gradient of the protected samples.
    memory = Exemplars(*(part[protected] for part in exemplars))
    groups = memory.labels if settings.average == "class" else torch.zeros_like(memory.labels)
    means = []
    for group in groups.unique():
        X, z, y = (part[groups == group] for part in memory)
        means.append(_gradient(X, z.softmax(1) - one_hot[y], bias))
    g_mean = torch.stack(means).mean(0)

    # Steps 5 to 7: g̃ of every class pair, the average over mixed samples of the two classes.
    classes = exemplars.labels.unique()
    scores = exemplars.logits.new_zeros(len(classes), len(classes))
    for a, class_a in enumerate(classes):
        for b, class_b in enumerate(classes):
            of_a = (exemplars.labels == class_a).nonzero().squeeze(1)
            of_b = (exemplars.labels == class_b).nonzero().squeeze(1)
            i, j = _pairs(of_a, of_b, settings.pairing == "all-pairs")
            X = lam * exemplars.embeddings[i] + (1 - lam) * exemplars.embeddings[j]  # (m, d)
            z = lam * exemplars.logits[i] + (1 - lam) * exemplars.logits[j]  # (m, C)
            y = lam * one_hot[class_a] + (1 - lam) * one_hot[class_b]  # (C,)
            g_mixed = _gradient(X, z.softmax(1) - y, bias)
            scores[a, b] = g_mean @ g_mixed

    # Steps 8 and 9: S⁻ and S*.
    return PairTable.from_scores(classes, scores)


def _pairs(of_a: Tensor, of_b: Tensor, all_pairs: bool) -> tuple[Tensor, Tensor]:
    """Return the exemplars of the two classes that are mixed with each other."""
    if all_pairs:
        return of_a.repeat_interleave(len(of_b)), of_b.repeat(len(of_a))
    k = torch.arange(max(len(of_a), len(of_b)), device=of_a.device)
    return of_a[k % len(of_a)], of_b[(k + 1) % len(of_b)]


def _gradient(X: Tensor, delta: Tensor, bias: bool) -> Tensor:
    """Return the mean of (δ, δ Xᵀ) over samples, built in full, as a vector of length C + C·d."""
    weight = (delta.T @ X / len(X)).flatten()
    return torch.cat([delta.mean(0), weight]) if bias else weight
