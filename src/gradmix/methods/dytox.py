"""DyTox: one transformer for all tasks, and one token, embedding and head for each.

Source: Douillard et al., "DyTox: Transformers for Continual Learning with DYnamic TOken
eXpansion", CVPR 2022; reference code arthurdouillard/dytox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix._setting_types import Number, setting
from gradmix.data.pool import ClassIndex
from gradmix.errors import InputError
from gradmix.methods.components import Options, Stage
from gradmix.methods.er import ExtendsNetwork
from gradmix.methods.losses import as_soft, fold_old_classes
from gradmix.methods.lwf import WithOldNetwork
from gradmix.models.heads import BlockLinear, drop_output, grow_head
from gradmix.models.network import Mix, Network, new_linear, remove_head
from gradmix.models.vit import INIT_STD, MLP_RATIO, attend, draw_as_deit


class DyToxOptions(Options):
    """The reference's values; the length and the learning rate of tuning are ratios."""

    divergence: Number = setting(0.1, "Weight of the new-versus-old loss.", ge=0)
    tuning: Number = setting(
        20 / 500, "Epochs of balanced tuning, as a multiple of the epochs.", gt=0
    )
    tuning_lr: Number = setting(0.1, "Learning rate of tuning, as a multiple of the lr.", gt=0)


class TaskAttention(nn.Module):
    """DyTox's decoder: a task's token attends to itself and to the tokens of an input.

    All tasks share it. Only the task's token leaves it, as the task's embedding.
    """

    def __init__(self, width: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        with torch.device("meta"):  # no values yet
            self.norm1, self.norm2 = (nn.LayerNorm(width) for _ in range(2))
            self.query, self.key, self.value = (
                nn.Linear(width, width, bias=False) for _ in range(3)
            )
            self.project = nn.Linear(width, width)
            self.widen = nn.Linear(width, MLP_RATIO * width)
            self.narrow = nn.Linear(MLP_RATIO * width, width)
        draw_as_deit(self.to_empty(device="cpu"), generator)
        self.to(device)

    def forward(self, tokens: Sequence[Tensor], patches: Tensor) -> list[Tensor]:
        """Return the embedding of each task, (B, d), from its token (d,) and patches (B, T, d)."""
        seen = self.norm1(patches)
        keys, values = self.key(seen), self.value(seen)  # the same for all tasks
        embeddings = []
        for token in tokens:
            own = token.expand(len(patches), 1, -1)
            normed = self.norm1(own)
            query = self.query(normed)
            own_keys = torch.cat([self.key(normed), keys], dim=1)
            own_values = torch.cat([self.value(normed), values], dim=1)
            own = own + self.project(attend(query, own_keys, own_values))
            own = own + self.narrow(F.gelu(self.widen(self.norm2(own))))
            embeddings.append(own[:, 0])
        return embeddings


class TaskTokenNetwork(nn.Module):
    """Each task's token attends to the tokens of the backbone; its head sees its embedding only.

    The head of the backbone becomes the head of the first task.
    """

    def __init__(self, backbone: Network, generator: torch.Generator) -> None:
        super().__init__()
        head, self.width = backbone.head, backbone.embedding_size
        device = head.weight.device
        if head.bias is None:  # the heads of all tasks have one
            head.bias = nn.Parameter(head.weight.new_zeros(head.out_features))
        self.backbone = remove_head(backbone)
        self.attention = TaskAttention(self.width, generator=generator, device=device)
        self.tokens = nn.ParameterList([self._new_token(generator, device)])
        self.norms = nn.ModuleList([nn.LayerNorm(self.width, device=device)])
        self.divergence: nn.Sequential | None = None  # one output for old classes, then the new
        self.head = BlockLinear([head])

    def _new_token(self, generator: torch.Generator, device: torch.device) -> nn.Parameter:
        token = nn.init.trunc_normal_(torch.empty(self.width), std=INIT_STD, generator=generator)
        return nn.Parameter(token.to(device))

    def embeddings(self, patches: Tensor) -> list[Tensor]:
        """Return the embedding of each task, (B, d), for the backbone's tokens (B, T, d)."""
        return self.attention(list(self.tokens), patches)  # type: ignore[no-any-return]

    def classify(self, embeddings: list[Tensor]) -> Tensor:
        """Return logits of all classes, (B, C)."""
        normed = [norm(e) for norm, e in zip(self.norms, embeddings, strict=True)]
        logits: Tensor = self.head(torch.cat(normed, dim=1))
        return logits

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits of all classes, (B, C)."""
        return self.classify(self.embeddings(self.backbone.tokens(x, mix, at)))

    def sizes(self) -> list[int]:
        """Return the number of classes of each task."""
        return [block.out_features for block in self.head.layers]

    def add_task(self, new: int, generator: torch.Generator) -> None:
        """Add a token, a norm and a head for `new` classes, and a new divergence head."""
        width, device = self.width, self.head.layers[0].weight.device
        self.tokens.append(self._new_token(generator, device))
        self.norms.append(nn.LayerNorm(width, device=device))
        added = new_linear(width, new, generator=generator, device=device)
        self.head = BlockLinear([*self.head.layers, added])
        self.divergence = nn.Sequential(
            nn.LayerNorm(width, device=device),
            new_linear(width, new + 1, generator=generator, device=device),
        )

    def reshape(self, sizes: list[int], generator: torch.Generator) -> None:
        """Make tokens and heads for tasks of these numbers of classes, to load values into."""
        device = self.head.layers[0].weight.device
        first = new_linear(self.width, sizes[0], generator=generator, device=device)
        self.tokens = nn.ParameterList([self.tokens[0]])
        self.norms = nn.ModuleList([self.norms[0]])
        self.head = BlockLinear([first])
        for size in sizes[1:]:
            self.add_task(size, generator)

    def drop_output(self, label: int) -> None:
        """Remove a class; a task without classes disappears."""
        sizes, task = self.sizes(), 0
        while label >= sizes[task]:
            label, task = label - sizes[task], task + 1
        layers = self.head.layers
        kept = [t for t in range(len(sizes)) if t != task or sizes[t] > 1]
        if task in kept:
            layers[task] = drop_output(layers[task], label)
        self.tokens = nn.ParameterList([self.tokens[t] for t in kept])
        self.norms = nn.ModuleList([self.norms[t] for t in kept])
        self.head = BlockLinear([layers[t] for t in kept])
        if self.divergence is None or task < len(sizes) - 1:
            return
        last = self.divergence[1]
        assert isinstance(last, nn.Linear)
        self.divergence[1] = drop_output(last, label + 1)
        if task not in kept:
            self.divergence = None

    def trained(self, *, tuning: bool) -> list[nn.Parameter]:
        """Return what a stage trains: all but the old tasks' own parts, or all but the backbone."""
        frozen: list[nn.Module] = [*self.norms[:-1], *self.head.layers[:-1]]
        if tuning:
            frozen = [self.backbone, *([] if self.divergence is None else [self.divergence])]
        tokens = [] if tuning else list(self.tokens)[:-1]
        rest = {id(p) for p in (*tokens, *(p for part in frozen for p in part.parameters()))}
        return [p for p in self.parameters() if p.requires_grad and id(p) not in rest]


class DyTox(ExtendsNetwork, WithOldNetwork):
    """Task tokens: every task has its own embedding of an input, made by one shared attention.

    Each class is a binary decision of its task's head. Training freezes the tokens and heads of
    old tasks, distils from the old network, and tells new classes from old ones by an auxiliary
    head (the divergence head). From the second task on, tuning trains everything except the
    backbone on classes in equal shares.

    It needs an adaptive optimizer, as transformers do: with plain SGD it hardly learns.

    Deviations: any network of gradmix can be the backbone. The positions of its last feature map
    are the patches; the blocks of a ViT have plain self-attention, without the gated positions of
    the reference. Tuning draws new classes from all their samples, and not only from those that
    the memory will keep. There is no stochastic depth. A task without new classes trains the
    newest token.

    Mixing: soft labels in all losses; distillation passes the mixed input through both networks.
    Criterion: the embedding concatenates the normalised embeddings of all tasks, and the head is
    block-diagonal. Gradients have the softmax form, although the loss is binary.
    """

    softmax = False
    options: DyToxOptions = DyToxOptions()
    model: TaskTokenNetwork

    def extended(self, first: Network) -> TaskTokenNetwork:
        """Return a network to which tokens and heads can be added."""
        return TaskTokenNetwork(first, self.streams.generator("heads"))

    def grow(self, seen: int) -> None:
        """Add a token and a head for new classes; for the first ones there are both."""
        generator, head = self.streams.generator("heads"), self.model.head
        if self.seen == 0:
            self.model.head = BlockLinear([grow_head(head.layers[0], seen, generator=generator)])
        elif seen > self.seen:
            self.model.add_task(seen - self.seen, generator)

    # --- stages -----------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """Return training and, from the second task on, tuning."""
        if len(self.model.tokens) == 1:
            return super().stages()
        return [*super().stages(), self.new_stage("tuning", self.options.tuning)]

    @property
    def is_tuning(self) -> bool:
        """Whether the current stage is tuning."""
        return self.stage.name == "tuning"

    def train_mode(self) -> None:
        """Put the network in training mode; the backbone rests while the heads are tuned."""
        super().train_mode()
        if self.is_tuning:
            self.model.backbone.eval()

    def parameters(self) -> list[nn.Parameter]:
        """Return what the current stage trains."""
        return self.model.trained(tuning=self.is_tuning)

    def learning_rates(self, epoch: int, steps: int) -> list[float]:
        """Return the learning rate of each step; it is constant in tuning."""
        if self.is_tuning:
            return [self.settings.lr * self.options.tuning_lr] * steps
        return super().learning_rates(epoch, steps)

    def epoch_samples(self) -> int:
        """Return how many samples an epoch covers; in tuning as many as a full memory has."""
        if not self.is_tuning:
            return super().epoch_samples()
        fair = int(self.memory.y.bincount().max()) * self.seen
        return min(fair, self.pool.num_new)

    def join(self, new: Tensor) -> Tensor:
        """Join new and replayed samples; in tuning draw as many with classes in equal shares."""
        if not self.is_tuning:
            return super().join(new)
        shape = (len(new), new.shape[1] + self.replay_size)
        generator = self.streams.device("replay")
        return ClassIndex(self.pool.y, self.seen).draw_balanced(shape, generator)

    # --- the loss ---------------------------------------------------------------------------

    def train_step(self, step: int) -> Tensor:
        """Return BCE, weighted against the distillation, and the divergence loss."""
        net, mixed = self.model, self.mixed_batch(step)
        with torch.set_grad_enabled(not self.is_tuning):
            patches = net.backbone.tokens(mixed.x, mixed.mix, mixed.at)
        embeddings = net.embeddings(patches)
        logits = net.classify(embeddings)
        targets = as_soft(mixed.targets, self.seen).to(logits.dtype)
        loss = F.binary_cross_entropy_with_logits(logits, self.smoothed(targets))
        if self.is_tuning or net.divergence is None:
            return loss
        if self.old is not None and self.old_classes < self.seen:
            share = self.old_classes / self.seen
            distance = divergence(logits[:, : self.old_classes], self.old_logits(mixed))
            loss = (1 - share) * loss + share * distance
        outputs: Tensor = net.divergence(embeddings[-1])
        old = self.seen - (outputs.shape[1] - 1)
        folded = self.smoothed(fold_old_classes(targets, old))
        auxiliary = F.binary_cross_entropy_with_logits(outputs, folded)
        return loss + self.options.divergence * auxiliary

    # --- state ------------------------------------------------------------------------------

    def drop_outputs(self, label: int) -> None:
        """Remove the class from the network; the next task makes a new old network."""
        self.model.drop_output(label)
        self.old, self.old_classes = None, 0

    def structure(self) -> dict[str, Any]:
        """Add the number of classes of each task and the outputs of the divergence head."""
        sizes = self.model.sizes()
        return {
            **super().structure(),
            "tasks": len(sizes),
            **{f"classes_{task}": size for task, size in enumerate(sizes)},
            "divergence": self.model.divergence is not None,
        }

    def rebuild(self, structure: dict[str, Any]) -> None:
        """Make tokens and heads of the saved number and shape."""
        sizes = [structure.get(f"classes_{task}", 0) for task in range(structure["tasks"])]
        if not sizes or min(sizes) < 1 or sum(sizes) != structure["outputs"]:
            raise InputError(f"structure: {sizes} classes do not make {structure['outputs']}")
        self.model.reshape(sizes, self.streams.generator("heads"))
        if not structure["divergence"]:
            self.model.divergence = None
        super().rebuild(structure)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of softmax outputs, averaged over rows and outputs."""
    wanted, found = teacher.log_softmax(dim=1), student.log_softmax(dim=1)
    return (wanted.exp() * (wanted - found)).mean()
