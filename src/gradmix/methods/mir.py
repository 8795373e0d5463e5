"""MIR, maximally interfered retrieval: replay what the next step would harm most.

Source: Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval",
NeurIPS 2019; reference code optimass/Maximally_Interfered_Retrieval.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.methods.components import Options
from gradmix.methods.er import ER
from gradmix.types import MixedBatch, Samples


class Retrieval(ER):
    """ER whose B2 is chosen at each step, because it depends on the network: MIR and ASER."""

    plans = False

    @abstractmethod
    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of B2 for the new samples at pool rows `new`, (|B2|,)."""

    def plan_epoch(self, new: Tensor) -> None:
        """Plan nothing: the replayed samples depend on the network at each step."""

    def mixed_batch(self, step: int) -> MixedBatch:
        """Retrieve B2, then mix B1 ∪ B2."""
        new = self.new[step]
        batch = torch.cat([new, self.retrieve(new)])
        return self.mixer.mix(self.mixer.plan(batch[None], self.selector.pairs), 0)


class RetrievalOptions(Options):
    """MIR's reference scores 5 candidates for each replayed sample: 50 for a replay batch of 10.

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

    options: RetrievalOptions = RetrievalOptions()

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

        Args:
            new: The samples of the step; of several ranks, this rank's.
            candidates: The candidates; of several ranks, this rank's.
            share: The share of the step's samples that `new` has.
        """
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        trained = {name: value for name, value in parameters.items() if value.requires_grad}
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        outputs = functional_call(self.model, (parameters, buffers), (new.x,))
        loss = self.class_loss(outputs, new.y) * share
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        self.ranks.all_sum([gradient for gradient in gradients if gradient is not None])
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
