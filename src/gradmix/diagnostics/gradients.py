"""Diagnostics of gradients: the share of harmful mixes, distances of classes, and the time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gradmix.criterion import PairSelector, embed, find_head
from gradmix.criterion.embedding import check_samples
from gradmix.diagnostics.inner_products import (
    LastLayer,
    Pair,
    WholeNetwork,
    check,
    check_counts,
    check_ratios,
)
from gradmix.errors import InputError
from gradmix.methods.losses import as_soft
from gradmix.mixing.gradmix import TensorPool
from gradmix.settings import CriterionSettings
from gradmix.settings import check as check_setting
from gradmix.types import Samples

BLOCK = 1024  # samples per block of the distance matrix


def detrimental_rate(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    whole_network: bool = True,
    alpha: float = 1.0,
    lam: float | None = None,
    batches: int = 8,
    batch_size: int = 64,
    replay_batch_size: int = 64,
    average: str = "class",
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """Return the share of mixed samples that cause more forgetting than the original.

    By Theorem 1, a mix d̃_ij = λ d_i + (1−λ) d_j is detrimental if training on it leaves the memory
    a higher loss than training on d_i alone:

        Σ_y ⟨∇ℓ(G_y), ∇ℓ(d_i) − ∇ℓ(d̃_ij)⟩ > 0,

    where G_y are the memory's samples of class y. Batches and partners are drawn as by ER with
    Mixup.

    Args:
        model: A classifier.
        memory: Inputs and labels of the exemplars.
        current: Inputs and labels of current samples.
        whole_network: Use gradients of all trainable parameters, or only of the last layer.
        alpha: λ ~ Beta(α, α), drawn for each row, which has less noise than one λ per batch.
        lam: A fixed λ.
        batches: Number of batches.
        batch_size: Current samples per batch, or all if there are fewer.
        replay_batch_size: Exemplars per batch, or all if there are fewer.
        average: Mean gradient of the memory over `class`es or over `sample`s.
        head: The last layer. Default: the last `nn.Linear`.
        generator: Default: PyTorch's global generator.

    Raises:
        InputError: An argument is invalid.
    """
    given = check(model, memory, current, average, head)
    check_counts(batches=batches, batch_size=batch_size, replay_batch_size=replay_batch_size)
    if lam is not None:
        check_ratios("lam", [lam])
    check_setting("alpha", alpha)
    outputs = given.head.out_features
    products = (
        WholeNetwork(model, given.memory, average, outputs)
        if whole_network
        else LastLayer(model, given.head, given.memory, average)
    )
    device = "cpu" if generator is None else generator.device
    harmful = []
    for _ in range(batches):
        parts = []  # B1 and B2, each drawn without replacement
        for samples, size in ((given.current, batch_size), (given.memory, replay_batch_size)):
            order = torch.randperm(len(samples.y), generator=generator, device=samples.y.device)
            parts.append([part[order[:size]] for part in samples])
        x, y = (torch.cat(part) for part in zip(*parts, strict=True))
        targets = as_soft(y, outputs)
        partners = torch.randperm(len(y), generator=generator, device=y.device)
        if lam is None:  # λ of every row, (N,)
            seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
            drawn = np.random.default_rng(int(seed)).beta(alpha, alpha, len(y))
            ratios = torch.from_numpy(drawn).to(x)
        else:
            ratios = torch.full((len(y),), lam, dtype=torch.float64).to(x)
        mixed = torch.lerp(x[partners], x, ratios.view(-1, *(1,) * (x.ndim - 1)))
        mixed_targets = torch.lerp(targets[partners], targets, ratios.to(targets)[:, None])
        harmful.append(products(x, targets) > products(mixed, mixed_targets))
    return float(torch.cat(harmful).double().mean())


class ClassDistances(NamedTuple):
    """Mean cosine distances, 0 (same direction) to 2 (opposite)."""

    within: float  # over pairs of different samples of one class
    between: float  # over pairs of samples of two classes


def class_distances(
    model: nn.Module, samples: Pair, *, head: nn.Linear | None = None
) -> ClassDistances:
    """Return the mean cosine distance 1 − cos(g_i, g_j) of last-layer gradients.

    With g = δ ⊗ (X, 1) and δ = softmax(z) − y, cos(g_i, g_j) is the cosine of the δ times the
    cosine of the (X, 1), so no gradient is computed. Only directions matter: samples whose gradient
    has vanished count as well. Without bias, an embedding of zeros has distance 1 to all.

    Args:
        model: A classifier.
        samples: Inputs and labels with two classes and two samples of one of them.
        head: The last layer. Default: the last `nn.Linear`.

    Raises:
        InputError: An argument is invalid.
    """
    head = find_head(model) if head is None else head
    x, y = check_samples("samples", samples, head.out_features)
    if head.out_features < 2:
        raise InputError("head has 1 output; gradients of a single class are zero, give 2 or more")
    _, counts = y.unique(return_counts=True)
    if len(counts) < 2 or int(counts.max()) < 2:
        raise InputError(
            f"samples have {len(counts)} classes of at most {int(counts.max())}; distances within "
            "and between classes need two classes and two samples of one of them"
        )
    seen = embed(model, head, x, y)
    # softmax(z) − y, normalised, (n, C). Up to a factor, the entries of other classes are the
    # softmax of their logits, and the entry of the own class is minus their sum. This form neither
    # cancels nor underflows.
    others = seen.logits.double().scatter(1, y[:, None], -torch.inf).softmax(dim=1)
    errors = nn.functional.normalize(others.scatter(1, y[:, None], -1.0), dim=1)
    embeddings = seen.embeddings.double()
    if head.bias is not None:
        embeddings = torch.cat([embeddings, embeddings.new_ones(len(y), 1)], dim=1)
    embeddings = nn.functional.normalize(embeddings, dim=1)
    within, between = 0.0, 0.0
    for rows in torch.arange(len(y), device=y.device).split(BLOCK):
        distances = 1 - (errors[rows] @ errors.T) * (embeddings[rows] @ embeddings.T)
        same = y[rows, None] == y
        between += float(distances[~same].sum())
        distances[torch.arange(len(rows), device=y.device), rows] = 0  # distance to itself
        within += float(distances[same].sum())
    pairs_within = int((counts * (counts - 1)).sum())
    pairs_between = len(y) ** 2 - int(counts.square().sum())
    return ClassDistances(within / pairs_within, between / pairs_between)


def criterion_seconds(
    model: nn.Module,
    memory: Pair,
    current: Pair,
    *,
    old_classes: Sequence[int] | None = None,
    tables: int = 1,
    repeats: int = 5,
    head: nn.Linear | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> dict[int, float]:
    """Return the median seconds of one refresh of the pair tables, by number of classes.

    A refresh is what selective mixup adds to an epoch (Algorithm 1, steps 3 to 9): draw exemplars
    of the current classes, embed them and the memory, and score all class pairs. One untimed
    refresh comes first.

    Args:
        model: A classifier.
        memory: Inputs and labels of the exemplars.
        current: Inputs and labels of current samples.
        old_classes: Numbers of classes to keep of the memory, timed one by one. Default: all.
        tables: Pair tables per refresh.
        repeats: Timed refreshes.
        head: The last layer. Default: the last `nn.Linear`.
        generator: Default: PyTorch's global generator.
        **settings: Settings of the criterion, such as `average`.

    Raises:
        InputError: An argument is invalid.
    """
    criterion = CriterionSettings(**settings)
    given = check(model, memory, current, criterion.average, head)
    check_counts(tables=tables, repeats=repeats)
    known = given.memory.y.unique()
    numbers = [len(known)] if old_classes is None else old_classes
    for number in numbers:
        if not 1 <= number <= len(known):
            raise InputError(f"old_classes has {number}; the memory has 1 to {len(known)} classes")
    host = np.random.default_rng(0)
    selector = PairSelector(
        criterion, tables=tables, ratio=(1.0, 1.0), host=host, generator=generator
    )
    seconds = {}
    for number in numbers:
        kept = torch.isin(given.memory.y, known[:number])
        pool = TensorPool(given.current, Samples(given.memory.x[kept], given.memory.y[kept]))
        selector.begin_task(pool, given.head.out_features)
        times = []
        for _ in range(repeats + 1):
            started = perf_counter()
            selector.refresh(model, given.head)
            _ = selector.negative_rate  # waits for the device
            times.append(perf_counter() - started)
        seconds[len(pool.y.unique())] = median(times[1:])
    return seconds
