"""DyTox's network: a backbone, one attention for all tasks, and a token and a head per task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.models.heads import BlockLinear, drop_output
from gradmix.models.network import Mix, Network, new_linear, remove_head
from gradmix.models.vit import INIT_STD, MLP_RATIO, attend, draw_as_deit


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

    Args:
        backbone: Gives the tokens of an input. Its head becomes the head of the first task.
        generator: Draws the weights of the attention and the first token.
    """

    def __init__(self, backbone: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.draws_randomly, self.width = backbone.draws_randomly, backbone.embedding_size
        head, device = backbone.head, backbone.head.weight.device
        self.backbone = remove_head(backbone)
        self.attention = TaskAttention(self.width, generator=generator, device=device)
        self.tokens = nn.ParameterList([self._new_token(generator, device)])
        self.norms = nn.ModuleList([nn.LayerNorm(self.width, device=device)])
        self.divergence: nn.Sequential | None = None  # one output for old classes, then the new
        self.head = BlockLinear([head])

    def _new_token(self, generator: torch.Generator, device: torch.device) -> nn.Parameter:
        token = torch.empty(self.width)
        return nn.Parameter(
            nn.init.trunc_normal_(token, std=INIT_STD, generator=generator).to(device)
        )

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
