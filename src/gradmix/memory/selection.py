"""Rules that choose exemplars: which samples of a class the memory keeps.

Each rule returns a priority for every sample; the memory keeps the lowest of each class.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F


def class_priorities(
    rule: str, features: Tensor, labels: Tensor, quota: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the priorities of samples by a rule that looks at the samples of a class together.

    A priority is a rank as a share of the class, so the more samples of a class arrive at once,
    the more of its exemplars come from there.

    Args:
        rule: "herding" or "kmeans".
        features: What the rule compares, (N, d).
        labels: Class of each sample, (N,).
        quota: Number of exemplars of each class, by label.
        generator: Source of randomness; herding draws nothing.
    """
    priority = torch.empty(len(labels), dtype=torch.float64, device=labels.device)
    for label in labels.unique().tolist():
        rows, most = labels == label, int(quota[label])
        if rule == "herding":
            ranks = herding_ranks(features[rows], most)
        else:
            ranks = kmeans_ranks(features[rows], most, generator)
        priority[rows] = (ranks + 0.5) / len(ranks)
    return priority


def herding_ranks(features: Tensor, most: int) -> Tensor:
    """Return the rank at which herding chooses each sample of one class, (n,).

    Each turn chooses the sample that brings the mean of the chosen nearest to the mean of all
    (Welling 2009, as used by iCaRL, Rebuffi et al., CVPR 2017).

    Args:
        features: Embeddings, (n, d); they are scaled to length 1.
        most: Number of samples to choose; all others share the last rank.
    """
    x = F.normalize(features, dim=1)
    mean = x.mean(dim=0)
    ranks = torch.full((len(x),), float(len(x)), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(mean)
    for turn in range(min(most, len(x))):
        distance = (mean - (total + x) / (turn + 1)).square().sum(dim=1)
        distance[ranks < len(x)] = torch.inf  # choose no sample twice
        chosen = int(distance.argmin())
        ranks[chosen] = turn
        total = total + x[chosen]
    return ranks


def kmeans_ranks(features: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return the rank at which each sample of one class is chosen, (n,).

    The samples are clustered into as many clusters as exemplars. The exemplars are the samples
    nearest to the centres. The largest cluster comes first, so it is the last to lose its exemplar
    if the quota shrinks.

    Args:
        features: What is clustered, (n, d).
        most: Number of samples to choose; all others share the last rank.
        generator: Seeds the first centres (k-means++).
    """
    from sklearn.cluster import KMeans  # slow to import and rarely needed
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    number = min(most, len(features))
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    clusters = KMeans(number, n_init=1, random_state=seed)
    # With several threads, the order of summation and thus the last bits would vary.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different samples than clusters
        distance = torch.from_numpy(clusters.fit_transform(features.float().numpy(force=True)))
    sizes = torch.from_numpy(clusters.labels_).long().bincount(minlength=number)
    ranks = torch.full((len(features),), float(len(features)), dtype=torch.float64)
    for turn, centre in enumerate(sizes.argsort(descending=True, stable=True).tolist()):
        chosen = int(distance[:, centre].argmin())
        distance[chosen] = torch.inf  # choose no sample twice
        ranks[chosen] = turn
    return ranks.to(features.device)
