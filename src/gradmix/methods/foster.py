"""FOSTER: a new branch learns what the old network got wrong; then both are compressed to one.

Source: Wang et al., "FOSTER: Feature Boosting and Compression for Class-Incremental Learning",
ECCV 2022; reference code G-U-N/ECCV22-FOSTER.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradmix._setting_types import Number, Switch, setting
from gradmix.criterion import evaluating
from gradmix.errors import InputError
from gradmix.methods.components import Options, Stage
from gradmix.methods.er import ExtendsNetwork, NetworkOfParts
from gradmix.methods.losses import distillation
from gradmix.models.heads import drop_output, widen_head
from gradmix.models.network import Mix, Network, new_linear
from gradmix.types import MixedBatch


class FOSTEROptions(Options):
    """The reference's values; the lengths of its stages are a ratio."""

    beta1: Number = setting(0.97, "Effective-number weights of the alignment.", ge=0, lt=1)
    beta2: Number = setting(0.97, "Effective-number weights of the distillation.", ge=0, lt=1)
    distill: Number = setting(1.0, "Weight of the distillation from the old network.", ge=0)
    temperature: Number = setting(2.0, "Temperature of both distillations.", gt=0)
    compression: Number = setting(
        130 / 170, "Epochs of compression, as a multiple of the epochs.", gt=0
    )
    mix_boosting: Switch = setting(1.0, "0 leaves the batches of boosting unmixed.")
    mix_compression: Switch = setting(0.0, "1 mixes the batches of compression, too.")


class TwoBranches(NetworkOfParts):
    """A frozen old network beside a new one, and a head on both embeddings."""

    def __init__(self, old: Network, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.old = old.requires_grad_(False).eval()
        self.new = copy.deepcopy(old).requires_grad_(True)
        size, device = old.embedding_size, old.head.weight.device
        self.new.head = new_linear(size, outputs, generator=generator, device=device)  # enhancement
        self.head = widen_head(old.head, 2 * size, outputs, generator=generator)
        self.head.requires_grad_(True)

    def embeddings(self, x: Tensor, mix: Mix | None, at: int | None) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the old branch, without gradient, and the new, (B, d) each."""
        with torch.no_grad():
            old = self.old.features(x, mix, at)
        return old, self.new.features(x, mix, at)


class FOSTER(ExtendsNetwork):
    """Boosting and compression.

    Boosting trains a new branch beside the frozen old network, with one head on both, a second
    head on the new branch and distillation from the old network. Compression trains a single
    network to answer as the two branches do, with classes weighted against their imbalance.

    Results come from the two branches ("main"), as in the reference. The single network, which
    is the old one of the next task, is reported as "student".

    Choices where the sources are silent: the optimizer is the same as in other methods; the
    number of new samples per class is counted and not fixed at 500; the first task is plain
    training.

    Mixing: soft labels in both cross-entropies of boosting; distillation passes the mixed input
    through both networks. Compression has no labels and uses unmixed batches by default
    (`mix_compression`), because mixing them costs accuracy (docs/reproduction.md).
    Criterion: the embeddings of both branches and the head on them, with plain softmax outputs.
    """

    options: FOSTEROptions = FOSTEROptions()
    other_networks = ("student",)
    student: Network | None = None

    def grow(self, seen: int) -> None:
        """From the second task on, make two branches; the last student becomes the old one."""
        if self.seen == 0:
            self.model.head = self.grown(self.head, seen)
            return
        old = self.model if self.student is None else self.student
        assert isinstance(old, Network)
        self.model = TwoBranches(old, seen, self.streams.generator("heads"))
        self.student = None

    def stages(self) -> Sequence[Stage]:
        """Return boosting and compression; the first task has one stage."""
        if not isinstance(self.model, TwoBranches):
            return super().stages()
        options = self.options
        return [
            self.new_stage("boosting", mixed=bool(options.mix_boosting)),
            self.new_stage("compression", options.compression, mixed=bool(options.mix_compression)),
        ]

    def begin_stage(self, stage: Stage) -> None:
        """Start a stage; compression starts from the old network with a grown head."""
        if stage.name == "compression":
            self._new_student()
        super().begin_stage(stage)

    def _new_student(self) -> None:
        assert isinstance(self.model, TwoBranches)
        student = copy.deepcopy(self.model.old)
        student.head = self.grown(student.head, self.head.out_features)
        self.student = student.requires_grad_(True).train()

    def trained_modules(self) -> list[nn.Module]:
        """Return the student while there is one, in compression; otherwise the network."""
        return [self.model if self.student is None else self.student]

    def train_step(self, step: int) -> Tensor:
        """Return the loss of the current stage."""
        mixed = self.mixed_batch(step)
        if self.stage.name == "compression":
            return self.compression_loss(mixed)
        if self.stage.name == "boosting":
            return self.boosting_loss(mixed)
        return self.class_loss(self.logits(mixed), mixed.targets)

    def boosting_loss(self, mixed: MixedBatch) -> Tensor:
        """Return CE(z / w) + CE of the new branch + distillation from the old network."""
        net = self.model
        assert isinstance(net, TwoBranches)
        old, own = net.embeddings(mixed.x, mixed.mix, mixed.at)
        logits = net.head(torch.cat([old, own], dim=1))
        before = net.old.head(old)
        weights = self.class_weights(self.options.beta1)
        aligned = self.class_loss(logits / weights, mixed.targets)
        enhanced = self.class_loss(net.new.head(own), mixed.targets)
        kept = distillation(logits[:, : before.shape[1]], before, self.options.temperature)
        loss: Tensor = aligned + enhanced + self.options.distill * kept
        return loss

    def compression_loss(self, mixed: MixedBatch) -> Tensor:
        """Return the distillation loss of the student; the answers are weighted by class."""
        assert self.student is not None
        temperature = self.options.temperature
        with torch.no_grad():
            answers = (self.logits(mixed) / temperature).softmax(dim=1)
        answers = answers * self.class_weights(self.options.beta2)
        answers = answers / answers.sum(dim=1, keepdim=True)
        outputs = self.student(mixed.x, mixed.mix, mixed.at) / temperature
        loss: Tensor = -(answers * outputs.log_softmax(dim=1)).sum(dim=1).mean()
        return loss

    def class_weights(self, beta: float) -> Tensor:
        """Return (1 − β) / (1 − β^n) for each class with n samples, scaled to mean 1, (C,)."""
        counts = self.pool.y.bincount(minlength=self.head.out_features)
        weights = (1 - beta) / (1 - beta ** counts.to(torch.float32))
        return weights / weights.mean()

    def drop_outputs(self, label: int) -> None:
        """Remove the class from both branches and the student."""
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
        """Return the two branches and the student."""
        return {"main": self.predict, "student": self.predict_student}

    @torch.no_grad()
    def predict_student(self, x: Tensor) -> Tensor:
        """Return class scores of the student; of the only network before there are two."""
        if self.student is None:
            return self.predict(x)
        with evaluating(self.student):
            scores: Tensor = self.student(x)
        return scores

    def structure(self) -> dict[str, Any]:
        """Add whether there are two branches and a student, and the old outputs."""
        old = self.model.old.head.out_features if isinstance(self.model, TwoBranches) else 0
        student = self.student is not None
        return {**super().structure(), "two": old > 0, "old": old, "student": student}

    def load_stage_state_dict(self, state: dict[str, Any], stage: Stage) -> None:
        """Check that there is a student in compression, and only there."""
        if (self.student is not None) != (stage.name == "compression"):
            raise InputError(f"structure.student does not fit the stage {stage.name!r}")
        super().load_stage_state_dict(state, stage)

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make networks of the saved shape."""
        if structure["student"] and not structure["two"]:
            raise InputError("structure.student: there is a student only beside two branches")
        first = self.model.old if isinstance(self.model, TwoBranches) else self.model
        assert isinstance(first, Network)
        self.model, self.student = first.requires_grad_(True), None
        outputs, bias = structure["old"] or structure["outputs"], self.head.bias is not None
        self.model.head = self.new_layer(self.head.in_features, outputs, bias)
        if structure["two"]:
            generator = self.streams.generator("heads")
            self.model = TwoBranches(first, structure["outputs"], generator)
        if structure["student"]:
            self._new_student()
        self.seen = structure["seen"]
