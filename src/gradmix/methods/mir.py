"""MIR, maximally interfered retrieval: replay what the next step would harm most.

Source: Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval",
NeurIPS 2019; reference code optimass/Maximally_Interfered_Retrieval.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.methods.base import Options
from gradmix.methods.er import ER
from gradmix.types import MixedBatch, Samples


class MIROptions(Options):
    """The reference scores 50 candidates for a replay batch of 10."""

    candidates: Number = setting(
        2.0, "Exemplars scored per step, as a multiple of the replay batch.", ge=1
    )


class MIR(ER):
    """Draws candidates and replays those whose loss a step on B1 would raise most.

    The virtual step is plain SGD on the unmixed B1 with the current learning rate. It leaves the
    model, its optimizer and its BatchNorm statistics unchanged: `torch.func` swaps parameters,
    and statistics are copies.

    Mixing: B1 ∪ B2 is mixed as in ER, after retrieval. Criterion: as in ER.
    """

    options_type: ClassVar[type[Options]] = MIROptions
    options: MIROptions
    plans: ClassVar[bool] = False

    def plan_epoch(self, new: Tensor) -> None:
        """Plan nothing: the replayed samples depend on the network at each step."""

    def mixed_batch(self, step: int) -> MixedBatch:
        """Retrieve B2, then mix B1 ∪ B2."""
        assert self.new is not None
        new = self.new[step]
        batch = torch.cat([new, self.retrieve(new)])
        return self.mixer.mix(self.mixer.plan(batch[None], self.selector.pairs), 0)

    def retrieve(self, new: Tensor) -> Tensor:
        """Return pool rows of the candidates whose loss rises most, (|B2|,)."""
        wanted = self.replay_size
        number = int(self.options.candidates * wanted)
        drawn = self.memory.draw(number, self.streams.device("replay")) + self.pool.num_new
        if len(drawn) <= wanted:
            return drawn
        rise = self.interference(self.pool.batch(new), self.pool.batch(drawn))
        return drawn[rise.topk(wanted).indices]

    def interference(self, new: Samples, candidates: Samples) -> Tensor:
        """Return how much a step on `new` raises the loss of each candidate, (n,)."""
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        trained = {name: value for name, value in parameters.items() if value.requires_grad}
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        outputs = functional_call(self.model, (parameters, buffers), (new.x,))
        loss = self.cross_entropy(outputs, new.y)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
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
            before, after = (
                functional_call(self.model, (values, buffers), (candidates.x,))
                for values in (parameters, moved)
            )
            y = candidates.y
            return F.cross_entropy(after, y, reduction="none") - F.cross_entropy(
                before, y, reduction="none"
            )
