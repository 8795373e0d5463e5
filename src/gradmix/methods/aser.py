"""ASER, adversarial Shapley value replay: retrieve exemplars near new samples and typical of old.

Source: Shim et al., "Online Class-Incremental Continual Learning with Adversarial Shapley Value",
AAAI 2021, the form with means ("ASVm"); reference code RaptorMai/online-continual-learning.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from gradmix._setting_types import Number, setting
from gradmix.criterion.embedding import embed_rows
from gradmix.methods.mir import Retrieval, RetrievalOptions
from gradmix.types import Samples


class ASEROptions(RetrievalOptions):
    """The reference's number of neighbours; it draws 1.5 or 2 candidates per class."""

    neighbours: Number = setting(5.0, "Nearest neighbours of the classifier.", ge=1, multiple_of=1)


class ASER(Retrieval):
    """Replays the candidates with the highest adversarial Shapley value.

    A nearest-neighbour classifier on embeddings gives every candidate two Shapley values: its share
    in classifying other exemplars (cooperative), and its share in classifying B1 (adversarial).
    B2 has the candidates with the greatest difference. They are typical of their own classes and
    lie where the new classes are.

    Four things differ from the reference, because the memory is filled at the end of a task.
    Retrieval starts at the second task and not when the memory is full. Up to half of a class's
    exemplars are candidates, and as many others are the cooperative ones. The memory has no sample
    of the new classes, so no candidate could ever match a sample of B1, and all adversarial values
    would be 0: random samples of classes that the memory lacks are therefore ranked with the
    candidates, but not replayed. The memory keeps random exemplars and does not follow Shapley
    values. While there are no more candidates than places in B2, B2 is drawn as in ER.

    Mixing and criterion: as in ER, after retrieval.
    """

    options: ASEROptions = ASEROptions()

    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of the candidates with the highest values, (|B2|,)."""
        wanted = self.replay_size
        candidates, cooperative = (rows + self.pool.num_new for rows in self.halves())
        if len(candidates) <= wanted:
            return self.draw_replay()
        rivals = self.draw_rivals(len(candidates))
        ranked = self.embedded(torch.cat([candidates, rivals]))
        values = self.values(ranked, cooperative) - self.values(ranked, new)
        return candidates[values[: len(candidates)].topk(wanted).indices]

    def values(self, ranked: Samples, evaluated: Tensor) -> Tensor:
        """Return the mean Shapley value of each ranked sample for some pool rows, (n,)."""
        if not len(evaluated):
            return torch.zeros(len(ranked.y), device=ranked.y.device)
        points = self.embedded(evaluated)
        return shapley_values(ranked, points, int(self.options.neighbours)).mean(dim=0)

    def embedded(self, index: Tensor) -> Samples:
        """Return embeddings, in evaluation mode, and labels of the samples at pool rows."""
        x = embed_rows(self.model, self.head, self.pool.inputs, index, self.ranks)
        return Samples(x, self.pool.y[index])

    def halves(self) -> tuple[Tensor, Tensor]:
        """Draw rows of candidates and cooperative exemplars, balanced over the memory's classes."""
        y, generator = self.memory.y, self.streams.device("replay")
        counts = y.bincount()
        each = ceil(self.options.candidates * self.replay_size / max(1, len(y.unique())))
        shuffled = torch.randperm(len(y), generator=generator, device=y.device)
        order = shuffled[y[shuffled].argsort(stable=True)]  # random within each class
        label = y[order]
        place = torch.arange(len(y), device=y.device) - (counts.cumsum(0) - counts)[label]
        number = ((counts + 1) // 2).clamp(max=each)[label]
        return order[place < number], order[(place >= number) & (place < 2 * number)]

    def draw_rivals(self, candidates: int) -> Tensor:
        """Draw samples of classes that the memory lacks, as many per class as candidates."""
        known, new = self.memory.y.unique(), self.pool.y[: self.pool.num_new]
        fresh = torch.isin(new, known, invert=True).nonzero().squeeze(1)
        number = ceil(candidates / len(known) * len(new[fresh].unique()))
        generator = self.streams.device("replay")
        return fresh[torch.randperm(len(fresh), generator=generator, device=fresh.device)[:number]]


def shapley_values(ranked: Samples, points: Samples, neighbours: int) -> Tensor:
    """Return exact Shapley values in a k-nearest-neighbour classifier, (points, ranked).

    The value of a set of samples for a point is the share of the point's label among its k nearest
    samples in the set, with k in the denominator. From the farthest sample to the nearest
    (Jia et al., VLDB 2019), with I = 1 where labels match:

        s_n = I_n / max(n, k)        s_i = s_{i+1} + (I_i − I_{i+1}) / k · min(k, i) / i

    Args:
        ranked: Embeddings (n, d) and labels (n,) of the samples that get values.
        points: Embeddings (m, d) and labels (m,) of the samples that are classified.
        neighbours: Number k of neighbours.
    """
    order = torch.cdist(points.x, ranked.x).argsort(dim=1)  # (m, n), nearest first
    match = (ranked.y[order] == points.y[:, None]).to(points.x.dtype)
    number = order.shape[1]
    rank = torch.arange(1, number, device=order.device)
    steps = (match[:, :-1] - match[:, 1:]) / neighbours * rank.clamp(max=neighbours) / rank
    last = match[:, -1:] / max(number, neighbours)
    sums = torch.cat([steps, last], dim=1).flip(1).cumsum(1).flip(1)  # s_i
    return torch.zeros_like(sums).scatter_(1, order, sums)
