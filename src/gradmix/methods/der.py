"""DER and DER++, dark experience replay: replay old outputs, and not only old labels.

Source: Buzzega et al., "Dark Experience for General Continual Learning", NeurIPS 2020;
reference code aimagelab/mammoth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.data.pool import ALL
from gradmix.errors import InputError
from gradmix.methods.components import Options
from gradmix.methods.er import ER
from gradmix.types import Samples

PREDICT_BATCH = 1024


class DEROptions(Options):
    """Weights of the terms of the loss; the reference uses 0.1 to 1."""

    alpha: Number = setting(0.5, "Weight of the distance to the stored logits.", ge=0)
    beta: Number = setting(0.5, "Weight of the cross-entropy on a second draw (DER++).", ge=0)


class DER(ER):
    """Cross-entropy on B1, plus the squared distance between new and stored outputs for B2.

    Logits are recorded in evaluation mode when exemplars are stored at the end of their task, as
    in Avalanche. (The reference stores them during training, from a reservoir; the memory of the
    paper is filled at the end of a task.) If the head has grown since, only the outputs that
    existed then are compared. Plain DER does not use the labels of the memory.

    Mixing: B1 ∪ B2 is mixed as one batch and the cross-entropy covers all of it, so a mixed DER
    does use the memory's labels. The distance always uses the unmixed B2.
    Criterion: as in ER.
    """

    options: DEROptions = DEROptions()
    extras = frozenset({"logits", "known"})

    def train_step(self, step: int) -> Tensor:
        """Return CE(B1) + α · MSE(B2)."""
        plan, number = self.plan, self.new.shape[1]
        assert plan is not None and plan.index is not None  # noqa: PT018
        replay = plan.index[step, number:]
        mixed = self.mixed_batch(step)
        outputs = self.logits(mixed)
        if self.mixer.recipe is None:
            rows, new = self.ranks.rows(self.step_rows), self.new_rows
            own = self.class_loss(outputs[:new], mixed.targets[:new])
            loss, again = self.term(own, new / number), outputs[new:]
            rows = slice(max(rows.start - number, 0), max(rows.stop - number, 0))
        else:
            loss, rows = self.class_loss(outputs, mixed.targets), self.ranks.rows(len(replay))
            again = outputs[:0]
            if rows.stop > rows.start:
                again = self.model(self.pool.augmented(replay, rows))
        if len(replay):
            distance = self.term(self.distance(again, replay, rows))
            loss = loss + self.options.alpha * distance
        return loss

    def class_shares(self) -> Tensor:
        """Return the shares of the classes in the cross-entropy: unmixed, it covers B1 only."""
        return self.shares_of(1, 0) if self.mixer.recipe is None else super().class_shares()

    def distance(self, outputs: Tensor, replay: Tensor, rows: slice = ALL) -> Tensor:
        """Return the mean squared distance to the stored logits, over outputs that existed then.

        `outputs` has some `rows` of the samples at pool rows `replay`; the result is their part of
        the mean over all.
        """
        index = replay - self.pool.num_new
        stored, known = (self.memory.extras[name][index] for name in ("logits", "known"))
        width = stored.shape[1]  # outputs of the head when exemplars were last stored
        there = torch.arange(width, device=outputs.device) < known[:, None]
        squares = (outputs[:, :width] - stored[rows]).square() * there[rows]
        return squares.sum() / there.sum()

    def end_task(self, new: Samples) -> None:
        """Store exemplars with their present outputs, in evaluation mode."""
        priority = self.priorities(new)
        index = torch.arange(len(new.y), device=new.y.device)  # they come first in the pool
        parts = index[self.ranks.equal_rows(len(index))].split(PREDICT_BATCH)
        outputs = torch.cat([self.predict(self.pool.inputs(part)) for part in parts])
        outputs = self.ranks.gather(outputs, len(index))  # (N, C)
        if len(self.memory):  # the head may have grown since
            old = self.memory.extras["logits"]
            self.memory.extras["logits"] = F.pad(old, (0, outputs.shape[1] - old.shape[1]))
        known = torch.full_like(new.y, outputs.shape[1])
        self.memory.add(new, priority, {"logits": outputs, "known": known})

    def load_memory(self, state: dict[str, Any]) -> None:
        """Restore the stored outputs, too."""
        super().load_memory(state)
        if len(self.memory):
            logits, known = (self.memory.extras[name] for name in ("logits", "known"))
            if (
                (logits.ndim, logits.dtype) != (2, torch.float32)
                or (known.ndim, known.dtype) != (1, torch.int64)
                or logits.shape[1] > self.head.out_features
            ):
                raise InputError("memory.extras: the stored outputs belong to another network")

    def drop_outputs(self, label: int) -> None:
        """Remove the class from the stored outputs, too."""
        super().drop_outputs(label)
        extras = self.memory.extras
        if "logits" not in extras:
            return
        logits, known = extras["logits"], extras["known"]
        kept = [column for column in range(logits.shape[1]) if column != label]
        extras["logits"], extras["known"] = logits[:, kept], known - (known > label).long()


class DERPlusPlus(DER):
    """DER, plus cross-entropy on a second draw from the memory, weighted by β.

    Mixing: as in DER. The second draw stays unmixed.
    """

    def train_step(self, step: int) -> Tensor:
        """Return CE(B1) + α · MSE(B2) + β · CE(B3)."""
        loss = super().train_step(step)
        if not len(self.memory):
            return loss
        replay = self.draw_replay()
        rows = self.ranks.rows(len(replay))
        again = self.pool.batch(replay, rows)
        share = self.ranks.share(len(replay))
        if share == 0:
            return loss
        own = self.class_loss(self.model(again.x), again.y)
        return loss + self.options.beta * self.term(own, share)

    def class_shares(self) -> Tensor:
        """Add the second draw, weighted by β."""
        if not len(self.memory):
            return super().class_shares()
        beta = self.options.beta
        return (super().class_shares() + beta * self.shares_of(new=0, memory=1)) / (1 + beta)
