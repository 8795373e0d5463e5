"""BiC, bias correction: distillation, then two numbers that correct the scores of new classes.

Source: Wu et al., "Large Scale Incremental Learning", CVPR 2019; reference form in G-U-N/PyCIL.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.data.pool import ClassIndex, Pool
from gradmix.errors import InputError
from gradmix.methods.lwf import Distilled, DistilledOptions
from gradmix.mixing.plan import check_rows
from gradmix.types import Samples

RIDGE = 0.01  # pulls α to 1 and β to 0; a few held-out samples may be separable without bound


class BiCOptions(DistilledOptions):
    """The reference's values."""

    holdout: Number = setting(
        0.1, "Share of the exemplars that only the correction uses.", gt=0, lt=1
    )


class BiC(Distilled):
    """(1 − μ) · CE + μ · distillation; then α and β for the logits of the new classes.

    A tenth of each old class's exemplars, and as many samples of each new class, are held out of
    the training. After it, α and β minimise their cross-entropy. Two things differ from the
    reference. The two numbers are found by L-BFGS instead of epochs of SGD, with a small pull to
    α = 1 and β = 0. They are then multiplied into the weights of the head, so that the network
    itself is corrected; the reference keeps them as layers of their own.

    Mixing: soft labels in the cross-entropy; both networks see the mixed input. Held-out samples
    are never mixed. Criterion: as in ER.
    """

    options: BiCOptions = BiCOptions()
    other_state = ("held",)
    held = torch.empty(0, dtype=torch.int64)  # held-out rows of the whole pool
    whole: Pool | None = None  # the pool with them

    def begin_task(self, pool: Pool, seen: int) -> None:
        """From the second task on, hold out some samples of every class."""
        self.held = self.choose_held(pool)
        super().begin_task(pool, seen)

    def choose_held(self, pool: Pool) -> Tensor:
        """Return pool rows: a share of each old class's exemplars, and as many of each new class.

        A class with a single exemplar keeps it for training.
        """
        new, old = (
            ClassIndex(y, int(pool.y.max()) + 1) for y in pool.y.tensor_split([pool.num_new])
        )
        generator, share = self.streams.device("holdout"), self.options.holdout
        of_new, of_old = (
            {c: int(part.counts[c]) for c in part.classes.tolist()} for part in (new, old)
        )
        numbers = {c: min(max(1, round(share * n)), n - 1) for c, n in of_old.items()}
        most = max(numbers.values(), default=0)
        exemplars = [old.draw(c, n, generator) + pool.num_new for c, n in numbers.items()]
        samples = [new.draw(c, min(most, n - 1), generator) for c, n in of_new.items()]
        return torch.cat([pool.y[:0], *exemplars, *samples])

    def set_pool(self, pool: Pool) -> None:
        """Take the data of a task without the held-out samples."""
        check_rows("held", self.held, len(pool))
        self.whole, trained = pool, pool.without(self.held) if len(self.held) else pool
        if not trained.num_new:
            raise InputError("held has all samples of the task; none is left for the training")
        super().set_pool(trained)

    @property
    def replay_size(self) -> int:
        """How many samples a step replays: as set, or all that are not held out if fewer."""
        return min(super().replay_size, len(self.pool) - self.pool.num_new)

    def draw_replay(self) -> Tensor:
        """Draw pool rows of B2 uniformly from the exemplars that are not held out."""
        number, y = self.pool.num_new, self.pool.y
        generator = self.streams.device("replay")
        drawn = torch.randperm(len(y) - number, generator=generator, device=y.device)
        return number + drawn[: self.replay_size]

    def end_task(self, new: Samples) -> None:
        """Correct the head, and store exemplars of all samples."""
        assert self.whole is not None
        if len(self.held) and self.old_classes < self.seen:
            logits = self.predict(self.whole.inputs(self.held))[:, : self.seen]
            labels = self.whole.y[self.held]
            self.correct_head(*fit_correction(logits, labels, self.old_classes))
        self.pool, self.held = self.whole, self.held[:0]
        super().end_task(new)

    @torch.no_grad()
    def correct_head(self, alpha: float, beta: float) -> None:
        """Make the head's outputs of the new classes α z + β."""
        new = slice(self.old_classes, self.seen)
        self.head.weight[new] *= alpha
        if self.head.bias is not None:
            self.head.bias[new] = alpha * self.head.bias[new] + beta


def fit_correction(logits: Tensor, labels: Tensor, old: int) -> tuple[float, float]:
    """Return α and β for which the corrected logits (B, C) have the least cross-entropy.

    The first `old` classes stay uncorrected.
    """
    known, new = logits.double().split([old, logits.shape[1] - old], dim=1)
    values = torch.tensor([1.0, 0.0], dtype=torch.float64, device=logits.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [values],
        max_iter=200,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        alpha, beta = values
        corrected = torch.cat([known, alpha * new + beta], dim=1)
        pull: Tensor = RIDGE * ((alpha - 1) ** 2 + beta**2)
        total = F.cross_entropy(corrected, labels) + pull
        total.backward()
        return total

    optimizer.step(loss)
    alpha, beta = values.detach().tolist()
    return alpha, beta
