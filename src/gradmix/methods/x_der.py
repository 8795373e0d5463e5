"""X-DER: dark experience replay whose stored outputs learn about later and earlier classes.

Source: Boschini et al., "Class-Incremental Continual Learning into the eXtended DER-verse", TPAMI
2022, the form without a contrastive loss ("X-DER w/ CE"); reference code aimagelab/mammoth.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gradmix._setting_types import Number, setting
from gradmix.data.pool import ClassIndex, Pool
from gradmix.errors import InputError
from gradmix.methods.base import Options
from gradmix.methods.der import DER, PREDICT_BATCH
from gradmix.methods.losses import as_soft
from gradmix.types import Samples


class XDEROptions(Options):
    """The reference's values for CIFAR-100."""

    alpha: Number = setting(0.3, "Weight of the distance to the stored logits.", ge=0)
    beta: Number = setting(0.8, "Weight of the cross-entropy on a second draw.", ge=0)
    gamma: Number = setting(0.85, "Largest stored logit of other tasks, over the label's.", ge=0)
    eta: Number = setting(0.01, "Weight of the margins to past and future outputs.", ge=0)
    margin: Number = setting(0.3, "Margin to past and future outputs.", ge=0)


class XDER(DER):
    """DER with new samples that spare past classes, and stored logits that improve.

    New samples compete with current and future classes only. A second draw, B3, has all classes
    in equal shares and compares them with each other. Margins keep the outputs of past and future
    classes below the outputs of the own side. At the end of a task, old exemplars receive the
    network's logits of the task's classes, and new ones keep its logits of past classes. If these
    exceed the label's logit, they are scaled down to γ times the label's.

    Deviations: B3 has samples of current classes, too. In the reference it has past classes only;
    with this memory, current classes would then never win against past ones. Stored logits are
    rewritten at the end of a task, and not during training, and those of future classes are not
    compared. The factor of a negative label logit is 0 instead of negative. Future classes exist
    only if the head is fixed. A replayed sample's own side is all past classes, not its task's.

    Mixing: B1 ∪ B2 is mixed as one batch. Each softmax takes its share of the soft label. Margins
    to past outputs skip rows with shares of past classes. The distance and the second draw use
    unmixed samples. Criterion: as in ER, with one softmax.
    """

    needs_new_classes: ClassVar[bool] = True
    online: ClassVar[bool] = False
    options_type: ClassVar[type[Options]] = XDEROptions
    options: XDEROptions  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.ranks.alone:
            raise InputError("method is 'x-der', which runs on one device; give devices=1")
        self.past = 0  # classes of earlier tasks

    def begin_task(self, pool: Pool, seen: int) -> None:
        """Start a task; a task without new classes continues the last one."""
        self.past = self.seen if seen > self.seen else self.past
        super().begin_task(pool, seen)

    def train_step(self, step: int) -> Tensor:
        """Return CE(B1) + α · MSE(B2) + β · CE(B3) + η · margins."""
        plan, options = self.plan, self.options
        assert plan is not None and plan.index is not None and self.new is not None  # noqa: PT018
        number = self.new.shape[1]
        replay = plan.index[step, number:]
        mixed = self.mixed_batch(step)
        outputs, labels = self.logits(mixed), as_soft(mixed.targets, self.head.out_features)
        if self.mixer.recipe is None:
            fresh, again = outputs.split([number, len(replay)])
            labels = labels[:number]
        else:
            fresh = outputs
            again = self.model(self.pool.augmented(replay)) if len(replay) else outputs[:0]
        loss = self.separate(fresh, labels) + options.eta * self.past_margin(fresh, labels)
        if len(replay):
            second = self.pool.batch(self.draw_second())
            third = self.model(second.x)
            loss = loss + options.alpha * self.distance(again, replay)
            loss = loss + options.beta * self.class_loss(third, second.y)
            fresh = torch.cat([fresh, third])
            labels = torch.cat([labels, as_soft(second.y, outputs.shape[1])])
        return loss + options.eta * self.future_margin(fresh, labels)

    def draw_second(self) -> Tensor:
        """Draw pool rows of B3: all classes, past and current, in equal shares."""
        return self._index.draw_balanced((self.replay_size,), self.streams.device("replay"))

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task, and where its classes are."""
        self._index = ClassIndex(pool.y, self.head.out_features)
        super().set_pool(pool)

    def class_shares(self) -> Tensor:
        """Add the second draw, weighted by β."""
        present, beta = (self._index.counts > 0).float(), self.options.beta
        if not len(self.memory):
            return super().class_shares()
        return (super().class_shares() + beta * present / present.sum()) / (1 + beta)

    # --- terms of the loss --------------------------------------------------------------------

    def separate(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, with one softmax for past classes and one for others.

        Args:
            outputs: Logits, (B, C).
            labels: Soft labels, (B, C). Each softmax takes its part of them.
        """
        outputs, smoothing = self.adjusted(outputs), self.settings.label_smoothing
        total = outputs.new_zeros(len(outputs))
        for part in (slice(0, self.past), slice(self.past, None)):
            own, logits = labels[:, part], outputs[:, part]
            if own.shape[1]:
                spread = own.sum(dim=1, keepdim=True) * (smoothing / own.shape[1])
                soft = own * (1 - smoothing) + spread
                total = total - (soft * logits.log_softmax(dim=1)).sum(dim=1)
        return total.mean()

    def past_margin(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return by how much past classes come too near to the current ones, as probabilities."""
        past, seen = self.past, self.seen
        if not 0 < past < seen:
            return outputs.new_zeros(())
        shares = outputs[:, :seen].softmax(dim=1)
        gap = shares[:, :past].amax(dim=1).detach() - shares[:, past:].amax(dim=1)
        only_new = labels[:, :past].sum(dim=1) == 0
        return mean_excess((gap + self.options.margin) * only_new)

    def future_margin(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return by how much future outputs come too near to those of the labels' side."""
        past, seen = self.past, self.seen
        if seen == outputs.shape[1]:
            return outputs.new_zeros(())
        sides = [labels[:, :past], labels[:, past:seen]]
        own = [(side.sum(dim=1, keepdim=True) > 0).expand_as(side) for side in sides]
        best = outputs[:, :seen].masked_fill(~torch.cat(own, dim=1), -torch.inf).amax(dim=1)
        return mean_excess(outputs[:, seen:].amax(dim=1) + self.options.margin - best)

    # --- stored logits ------------------------------------------------------------------------

    def memory_logits(self, new: Samples) -> Tensor:
        """Return the outputs for the task's samples, (N, C); those of past classes are tempered."""
        outputs = super().memory_logits(new)
        rows = new.y >= self.past
        if self.past and len(rows):
            label = outputs.gather(1, new.y[:, None])
            lower = temper(outputs[:, : self.past], label, self.options.gamma)
            outputs[rows, : self.past] = lower[rows]
        return outputs

    def end_task(self, new: Samples) -> None:
        """Store exemplars; older ones receive tempered logits of the task's classes."""
        super().end_task(new)
        past, seen, (x, y), extras = self.past, self.seen, self.memory.samples, self.memory.extras
        extras["known"] = torch.full_like(y, seen)  # logits of future classes mean nothing yet
        rows = (y < past).nonzero().squeeze(1)
        if not len(rows):
            return
        parts = [self.predict(self.normalise(x[part])) for part in rows.split(PREDICT_BATCH)]
        logits = extras["logits"].clone()
        label = logits[rows].gather(1, y[rows, None])
        logits[rows, past:seen] = temper(torch.cat(parts)[:, past:seen], label, self.options.gamma)
        extras["logits"] = logits

    # --- state --------------------------------------------------------------------------------

    def drop_outputs(self, label: int) -> None:
        """Remove a class; it may be one of the past."""
        super().drop_outputs(label)
        self.past -= label < self.past

    def structure(self) -> dict[str, Any]:
        """Add the number of past classes."""
        return {**super().structure(), "past": self.past}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Take the number of past classes, too."""
        super().rebuild(structure)
        self.past = structure["past"]
        if self.past > self.seen:
            raise InputError(f"structure.past is {self.past}, of {self.seen} classes seen")


def temper(logits: Tensor, label: Tensor, gamma: float) -> Tensor:
    """Return logits whose largest is at most γ times the label's, if it was above the label's.

    Args:
        logits: Logits of classes of other tasks, (B, K).
        label: The logit of the label, (B, 1).
        gamma: The factor.
    """
    most = logits.amax(dim=1, keepdim=True)
    factor = (gamma * label / most).clamp(min=0)
    return torch.where(most > label, logits * factor, logits)


def mean_excess(gaps: Tensor) -> Tensor:
    """Return the mean of the positive numbers among `gaps`; 0 if there are none."""
    return gaps.relu().sum() / (gaps > 0).sum().clamp(min=1)
