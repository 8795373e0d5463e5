"""MIR and ASER: the network at each step decides which exemplars are replayed.

Sources: Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval" (MIR),
NeurIPS 2019, reference code optimass/Maximally_Interfered_Retrieval; Shim et al., "Online
Class-Incremental Continual Learning with Adversarial Shapley Value" (ASER), AAAI 2021, the form
with means ("ASVm"), reference code RaptorMai/online-continual-learning.
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.criterion.embedding import embed_rows
from gradmix.methods.er import ER
from gradmix.methods.parts import Options
from gradmix.types import MixedBatch, Samples


class Retrieval(ER):
    """ER whose B2 is chosen at each step, because it depends on the network."""

    plans: ClassVar[bool] = False

    @abstractmethod
    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of B2 for the new samples at pool rows `new`, (|B2|,)."""

    def plan_epoch(self, new: Tensor) -> None:
        """Plan nothing: the replayed samples depend on the network at each step."""

    def mixed_batch(self, step: int) -> MixedBatch:
        """Retrieve B2, then mix B1 ∪ B2."""
        assert self.new is not None
        new = self.new[step]
        batch = torch.cat([new, self.retrieve(new)])
        return self.mixer.mix(self.mixer.plan(batch[None], self.selector.pairs), 0)


class MIROptions(Options):
    """The reference scores 5 candidates for each replayed sample: 50 for a replay batch of 10.

    Our default is 2, because a step with 5 takes longer, and because earlier results use 2.
    """

    candidates: Number = setting(
        2.0, "Exemplars scored per step, as a multiple of the replay batch.", ge=1
    )


class MIR(Retrieval):
    """Draws candidates and replays those whose loss a step on B1 would raise most.

    The virtual step is plain SGD on the unmixed B1 with the current learning rate. It leaves the
    model, its optimizer and its BatchNorm statistics unchanged: `torch.func` swaps parameters,
    and statistics are copies.

    Mixing: B1 ∪ B2 is mixed as in ER, after retrieval. Criterion: as in ER.
    """

    options_type: ClassVar[type[Options]] = MIROptions
    options: MIROptions

    def remark(self) -> str | None:
        """Say when there is nothing to choose."""
        if self.replay_size == 0 or self.replay_size < len(self.memory):
            return None
        return (
            f"the memory of {len(self.memory)} samples fits into the replay batch: MIR replays all "
            "of it, as ER does"
        )

    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of the candidates whose loss rises most, (|B2|,)."""
        wanted = self.replay_size
        number = int(self.options.candidates * wanted)
        drawn = self.memory.draw(number, self.streams.device("replay")) + self.pool.num_new
        if len(drawn) <= wanted:
            return drawn
        ranks = self.ranks
        own = self.pool.batch(new, ranks.rows(len(new)))
        candidates = self.pool.batch(drawn, ranks.rows(len(drawn)))
        rise = self.interference(own, candidates, ranks.share(len(new)))
        return drawn[ranks.gather(rise, len(drawn)).topk(wanted).indices]

    def interference(self, new: Samples, candidates: Samples, share: float = 1.0) -> Tensor:
        """Return how much a step on `new` raises the loss of each candidate, (n,).

        Of several ranks, both are this rank's; `new` has a share of the step's samples.
        """
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        trained = {name: value for name, value in parameters.items() if value.requires_grad}
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        outputs = functional_call(self.model, (parameters, buffers), (new.x,))
        loss = self.class_loss(outputs, new.y) * share
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        self.ranks.all_sum([gradient for gradient in gradients if gradient is not None])
        assert self.optimizer is not None
        rates = {
            id(p): group["lr"] for group in self.optimizer.param_groups for p in group["params"]
        }
        moved = parameters | {
            name: value.detach() - rates[id(value)] * gradient
            for (name, value), gradient in zip(trained.items(), gradients, strict=True)
            if gradient is not None
        }
        with torch.no_grad():
            losses = []
            for values in (parameters, moved):
                outputs = functional_call(self.model, (values, buffers), (candidates.x,))
                adjusted = self.adjusted(outputs)
                losses.append(F.cross_entropy(adjusted, candidates.y, reduction="none"))
        return losses[1] - losses[0]


class ASEROptions(Options):
    """The reference's number of neighbours; it draws 1.5 or 2 candidates per class."""

    neighbours: Number = setting(5.0, "Nearest neighbours of the classifier.", ge=1, multiple_of=1)
    candidates: Number = setting(
        2.0, "Exemplars scored per step, as a multiple of the replay batch.", ge=1
    )


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

    options_type: ClassVar[type[Options]] = ASEROptions
    options: ASEROptions

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

    Both arguments have embeddings and labels; `ranked` samples get values, `points` are classified.
    """
    order = torch.cdist(points.x, ranked.x).argsort(dim=1)  # (m, n), nearest first
    match = (ranked.y[order] == points.y[:, None]).to(points.x.dtype)
    number = order.shape[1]
    rank = torch.arange(1, number, device=order.device)
    steps = (match[:, :-1] - match[:, 1:]) / neighbours * rank.clamp(max=neighbours) / rank
    last = match[:, -1:] / max(number, neighbours)
    sums = torch.cat([steps, last], dim=1).flip(1).cumsum(1).flip(1)  # s_i
    return torch.zeros_like(sums).scatter_(1, order, sums)
