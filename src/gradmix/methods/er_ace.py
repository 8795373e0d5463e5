"""ER-ACE, asymmetric cross-entropy: new samples compete only with the classes beside them.

Source: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual
Learning", ICLR 2022; reference code pclucas14/AML.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix.memory import random_priority
from gradmix.memory.replay import first_of_each_class
from gradmix.methods.er import ER
from gradmix.methods.losses import as_soft


class ERACE(ER):
    """From the second task on, the loss of B1 leaves out the classes that B1 does not contain.

    New samples then do not push the scores of old classes down. The loss of B2 covers all classes;
    it alone compares new classes with old ones, so B2 must contain both. It is drawn from the
    memory and, as if they were in memory already, as many samples of each current class; these
    are chosen anew in every epoch. The total is the sum of the two means, as in the reference.

    Two things differ from the reference: the head is an ordinary linear layer, not a cosine
    classifier, and outputs of future classes are left out, too.

    Mixing: B1 ∪ B2 is mixed as one batch. A mixed row of B1 is compared with the classes of B1 if
    its label lies within them, otherwise with all classes. Criterion: as in ER.
    """

    def join(self, new: Tensor) -> Tensor:
        """Return pool rows of B1 ∪ B2 for every step, (S, |B1| + |B2|)."""
        rows, generator = self.replayable(), self.streams.device("replay")
        orders = [torch.randperm(len(rows), generator=generator, device=rows.device) for _ in new]
        return torch.cat([new, rows[torch.stack(orders)[:, : self.replay_size]]], dim=1)

    def replayable(self) -> Tensor:
        """Return pool rows of the memory and of as many samples of each current class."""
        number, y = self.pool.num_new, self.pool.y
        memory = torch.arange(number, len(y), device=y.device)
        if not len(memory):
            return memory
        priority = random_priority(number, self.streams.device("replay"))
        current = first_of_each_class(y[:number], priority, self.memory.quota(y.unique()))
        return torch.cat([current, memory])

    def train_step(self, step: int) -> Tensor:
        """Return CE(B1 among its own classes) + CE(B2 among all)."""
        mixed, number = self.mixed_batch(step), self.new.shape[1]
        outputs = self.logits(mixed)
        if not len(self.memory):
            return self.class_loss(outputs, mixed.targets)
        targets = as_soft(mixed.targets, outputs.shape[1])
        present, new = self.pool.y[self.new[step]].unique(), self.new_rows
        own = self.loss_among(present, outputs[:new], targets[:new])
        replayed = self.class_loss(outputs[new:], targets[new:])
        share = (len(outputs) - new) / (self.step_rows - number)
        return self.term(own, new / number) + self.term(replayed, share)

    def loss_among(self, present: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits with soft labels (B, C) among the classes `present` (K,).

        A row whose label lies outside these classes is compared with all classes.
        """
        inside = targets[:, present].sum(dim=1) > 1 - 1e-6
        among = self.cross_entropy(outputs[:, present], targets[:, present], "none")
        full = self.cross_entropy(self.adjusted(outputs), targets, "none")
        return torch.where(inside, among, full).mean()

    def class_shares(self) -> Tensor:
        """Return the shares among the samples that B2 is drawn from."""
        number, outputs = self.pool.num_new, self.head.out_features
        if not len(self.memory):
            return super().class_shares()
        counts = self.pool.y[:number].bincount(minlength=outputs)
        quota = self.memory.quota(self.pool.y.unique())
        current = torch.minimum(counts, F.pad(quota, (0, outputs - len(quota))))
        total = current + self.pool.y[number:].bincount(minlength=outputs)
        return total.float() / total.sum()
