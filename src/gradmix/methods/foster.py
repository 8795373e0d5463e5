"""FOSTER: a new branch learns what the old network got wrong, then both are made one again.

Source: Wang et al., "FOSTER: Feature Boosting and Compression for Class-Incremental Learning",
ECCV 2022; reference code G-U-N/ECCV22-FOSTER.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.criterion import evaluating
from gradmix.errors import InputError
from gradmix.methods.base import Method, Options, Stage
from gradmix.methods.losses import check_splittable, distillation
from gradmix.mixing.plan import Plan
from gradmix.models.base import Mix, Network
from gradmix.models.heads import drop_output, grow_head, widen_head
from gradmix.types import MixedBatch


@dataclass(frozen=True)
class FOSTEROptions(Options):
    """The reference's values, the lengths of its stages as a ratio."""

    beta1: float = 0.97  # effective-number weights of logit alignment
    beta2: float = 0.97  # and of the balanced distillation
    distill: float = 1.0  # weight of distillation from the old network
    temperature: float = 2.0
    compression: float = 130 / 170  # length of compression over that of boosting
    mix_boosting: float = 1.0  # 0 leaves its batches unmixed
    mix_compression: float = 0.0  # 1 mixes its batches too

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be from 0 to below 1")
        if not 0 <= self.distill < float("inf"):
            raise InputError(f"distill is {self.distill}; a weight is 0 or more")
        for name in ("temperature", "compression"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("mix_boosting", "mix_compression"):
            if getattr(self, name) not in (0, 1):
                raise InputError(f"{name} is {getattr(self, name)}; it is 1, for yes, or 0")


class TwoBranches(nn.Module):
    """A frozen old network beside a new one, and a head on both embeddings."""

    def __init__(self, old: Network, outputs: int) -> None:
        super().__init__()
        self.old = old.requires_grad_(False).eval()
        self.new = copy.deepcopy(old).requires_grad_(True)
        size = old.embedding_size
        self.new.head = nn.Linear(size, outputs).to(old.head.weight.device)  # enhancement
        self.head = widen_head(old.head, 2 * size, outputs).requires_grad_(True)

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> tuple[Tensor, Tensor]:
        """Of the old branch, without gradient, and of the new."""
        with torch.no_grad():
            old = self.old.features(x, mix, at)
        return old, self.new.features(x, mix, at)

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Logits of all classes."""
        logits: Tensor = self.head(torch.cat(self.embeddings(x, mix, at), dim=1))
        return logits

    def train(self, mode: bool = True) -> TwoBranches:
        """The old branch stays in evaluation mode."""
        super().train(mode)
        self.old.eval()
        return self


class FOSTER(Method):
    """Boosting: the old network, frozen, and a new branch are trained on one head, with a second
    head on the new branch alone and distillation from the old network; then compression: a
    single network learns to answer as the two do, classes weighted against their imbalance.

    Results are of the two branches ("main"), as the reference reports them; those of the single
    network, which is the old one of the next task, are beside them as "student".

    Where the sources leave a choice: the optimizer is that of the other methods; the number of
    new samples per class is counted, not fixed at 500; the first task is plain training.

    Mixing: soft labels in both cross-entropies of boosting; distillation takes the mixed input
    through both networks. Compression, which has no labels, sees batches as they are unless asked
    (`mix_compression`): mixing them too costs accuracy (docs/reproduction.md). Criterion: the
    embedding is that of both branches, the last layer the head on them, with plain softmax outputs.
    """

    options_type: ClassVar[type[Options]] = FOSTEROptions
    grows: ClassVar[bool] = True

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(check_splittable(model, "FOSTER"), *args, **kwargs)
        self.student: Network | None = None

    @property
    def _options(self) -> FOSTEROptions:
        assert isinstance(self.options, FOSTEROptions)
        return self.options

    def grow(self, seen: int) -> None:
        """From the second task on: two branches, the old one being the last student."""
        with self.streams.as_global("heads"):
            if self.seen == 0:
                assert isinstance(self.model, Network)
                self.model.head = grow_head(self.head, seen)
                return
            old = self.model if self.student is None else self.student
            assert isinstance(old, Network)
            self.model, self.student = TwoBranches(old, seen), None

    def stages(self) -> Sequence[Stage]:
        """Boosting and compression; the first task has one stage."""
        epochs = self.settings.epochs
        if not isinstance(self.model, TwoBranches):
            return [Stage("train", epochs)]
        shorter = max(1, round(epochs * self._options.compression))
        return [Stage("boosting", epochs), Stage("compression", shorter)]

    def begin_stage(self, stage: Stage) -> None:
        """Compression starts from the old network, its head grown."""
        if stage.name == "compression":
            self._new_student()
        super().begin_stage(stage)

    def _new_student(self) -> None:
        assert isinstance(self.model, TwoBranches)
        with self.streams.as_global("heads"):
            student = copy.deepcopy(self.model.old)
            student.head = grow_head(student.head, self.head.out_features)
            self.student = student.requires_grad_(True).train()

    def train_mode(self) -> None:
        """In compression the student trains and the two branches answer as they will in use."""
        if self.stage.name == "compression":
            assert self.student is not None
            self.model.eval()
            self.student.train()
        else:
            self.model.train()

    def parameters(self) -> list[nn.Parameter]:
        """The student in compression, else all that is not frozen."""
        trained = self.student if self.stage.name == "compression" else self.model
        assert trained is not None
        return [parameter for parameter in trained.parameters() if parameter.requires_grad]

    def plan_epoch(self, new: Tensor) -> Plan | None:
        """Mixed, but for stages that are not to be."""
        options = self._options
        mixed = {"boosting": options.mix_boosting, "compression": options.mix_compression}
        if mixed.get(self.stage.name, True):
            return super().plan_epoch(new)
        index = self.joined(new)
        return Plan(self.pool.y[index], index)

    def train_step(self, step: int) -> Tensor:
        """The loss of the stage."""
        mixed = self.mixed_batch(step)
        if self.stage.name == "compression":
            return self.compression_loss(mixed)
        if self.stage.name == "boosting":
            return self.boosting_loss(mixed)
        return F.cross_entropy(self.logits(mixed), mixed.targets)

    def boosting_loss(self, mixed: MixedBatch) -> Tensor:
        """CE(z / w) + CE of the new branch alone + distillation from the old network."""
        net = self.model
        assert isinstance(net, TwoBranches)
        old, own = net.embeddings(mixed.x, mixed.mix, mixed.at)
        logits = net.head(torch.cat([old, own], dim=1))
        before = net.old.head(old)
        aligned = F.cross_entropy(logits / self.class_weights(self._options.beta1), mixed.targets)
        enhanced = F.cross_entropy(net.new.head(own), mixed.targets)
        kept = distillation(logits[:, : before.shape[1]], before, self._options.temperature)
        loss: Tensor = aligned + enhanced + self._options.distill * kept
        return loss

    def compression_loss(self, mixed: MixedBatch) -> Tensor:
        """The student against the two branches, whose answers are weighted by class."""
        assert self.student is not None
        temperature = self._options.temperature
        with torch.no_grad():
            answers = (self.logits(mixed) / temperature).softmax(dim=1)
        answers = answers * self.class_weights(self._options.beta2)
        answers = answers / answers.sum(dim=1, keepdim=True)
        outputs = self.student(mixed.x, mixed.mix, mixed.at) / temperature
        loss: Tensor = -(answers * outputs.log_softmax(dim=1)).sum(dim=1).mean()
        return loss

    def class_weights(self, beta: float) -> Tensor:
        """(1 − β) / (1 − β^n) for every class with n samples in the pool, mean 1."""
        counts = self.pool.y.bincount(minlength=self.head.out_features)
        weights = (1 - beta) / (1 - beta ** counts.to(torch.float32))
        return weights / weights.mean()

    def drop_outputs(self, label: int) -> None:
        """In both branches and the student."""
        super().drop_outputs(label)
        net = self.model
        if isinstance(net, TwoBranches):
            net.new.head = drop_output(net.new.head, label)
            if label < net.old.head.out_features and net.old.head.out_features > 1:
                net.old.head = drop_output(net.old.head, label)
            elif label < net.old.head.out_features:  # a head has at least one output
                net.old.head.requires_grad_(False).weight.zero_()
                net.old.head.bias.zero_()
        if self.student is not None:
            self.student.head = drop_output(self.student.head, label)

    def predictors(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The two branches, and the student."""
        return {"main": self.predict, "student": self.predict_student}

    @torch.no_grad()
    def predict_student(self, x: Tensor) -> Tensor:
        """Class scores of the compressed network; of the only one there is before there are two."""
        if self.student is None:
            return self.predict(x)
        with evaluating(self.student):
            scores: Tensor = self.student(x)
        return scores

    def networks(self) -> dict[str, nn.Module]:
        """With the student, once there is one."""
        return super().networks() | ({} if self.student is None else {"student": self.student})

    def structure(self) -> dict[str, Any]:
        """Whether there are two branches and a student, and what the old one knows."""
        two = isinstance(self.model, TwoBranches)
        old = self.model.old.head.out_features if isinstance(self.model, TwoBranches) else 0
        student = self.student is not None
        return {**super().structure(), "two": two, "old": old, "student": student}

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Networks of the saved shape."""
        first = self.model.old if isinstance(self.model, TwoBranches) else self.model
        assert isinstance(first, Network)
        self.model, self.student = first.requires_grad_(True), None
        with self.streams.as_global("heads"):
            outputs = structure["old"] or structure["outputs"]
            device = self.head.weight.device
            self.model.head = nn.Linear(self.head.in_features, outputs).to(device)
            if structure["two"]:
                self.model = TwoBranches(self.model, structure["outputs"])
        if structure["student"]:
            self._new_student()
        self.seen = structure["seen"]
