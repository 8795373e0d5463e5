"""The share of randomly mixed samples that harm the memory more than the originals."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gradmix.diagnostics.inner_products import LastLayer, WholeNetwork
from gradmix.diagnostics.inputs import Given, Pair, check, check_counts, check_ratios, one_hot
from gradmix.settings import check as check_setting
from gradmix.types import Samples


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
    harmful = []
    for _ in range(batches):
        x, y = _draw_batch(given, batch_size, replay_batch_size, generator)
        targets = one_hot(y, outputs)
        partners = torch.randperm(len(y), generator=generator, device=y.device)
        ratios = _draw_ratios(len(y), alpha, lam, generator).to(x)
        mixed = torch.lerp(x[partners], x, ratios.view(-1, *(1,) * (x.ndim - 1)))
        mixed_targets = torch.lerp(targets[partners], targets, ratios.to(targets)[:, None])
        harmful.append(products(x, targets) > products(mixed, mixed_targets))
    return float(torch.cat(harmful).double().mean())


def _draw_batch(
    given: Given, batch_size: int, replay_batch_size: int, generator: torch.Generator | None
) -> Samples:
    """Draw B1 ∪ B2, each without replacement."""
    parts = []
    for samples, size in ((given.current, batch_size), (given.memory, replay_batch_size)):
        order = torch.randperm(len(samples.y), generator=generator, device=samples.y.device)
        parts.append(Samples(*(part[order[:size]] for part in samples)))
    return Samples(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _draw_ratios(
    number: int, alpha: float, lam: float | None, generator: torch.Generator | None
) -> Tensor:
    """Draw λ for every row, (N,)."""
    if lam is not None:
        return torch.full((number,), lam, dtype=torch.float64)
    device = "cpu" if generator is None else generator.device
    seed = torch.randint(2**63 - 1, (1,), generator=generator, device=device)
    return torch.from_numpy(np.random.default_rng(int(seed)).beta(alpha, alpha, number))
