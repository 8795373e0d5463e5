"""Attention of one set of tokens to another, and the parts that methods build with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_HEADS = 8
RATIO = 4  # width of a hidden layer / width of a token
INIT_STD = 0.02  # of weights and tokens, as in DeiT


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return multi-head attention, (B, Q, d), of queries (B, Q, d) to tokens (B, T, d).

    There are 8 heads, or the largest number that divides both 8 and d.
    """
    heads = math.gcd(MOST_HEADS, query.shape[2])
    split = (tokens.unflatten(2, (heads, -1)).transpose(1, 2) for tokens in (query, key, value))
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


class MergeAttention(nn.Module):
    """TagFex's merge: a task-specific network's tokens attend to a task-agnostic network's.

    Every projection has its own weights without bias. There is no projection of the output.
    """

    def __init__(self, width: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width, device=device) for _ in range(2)])
        self.query = _projection(width, generator, device)
        self.keys = nn.ModuleList([_projection(width, generator, device) for _ in range(2)])
        self.values = nn.ModuleList([_projection(width, generator, device) for _ in range(2)])

    def forward(self, agnostic: Tensor, specific: Tensor) -> Tensor:
        """Return the mean of the merged tokens, (B, d), of tokens (B, T, d) of each network."""
        tokens = [norm(part) for norm, part in zip(self.norms, (agnostic, specific), strict=True)]
        keys, values = (
            torch.cat([project(part) for project, part in zip(each, tokens, strict=True)], dim=1)
            for each in (self.keys, self.values)
        )
        return attend(self.query(tokens[1]), keys, values).mean(dim=1)


class TaskAttention(nn.Module):
    """DyTox's decoder: a task's token attends to itself and to the tokens of an input.

    All tasks share it. Only the task's token leaves it, as the task's embedding.
    """

    def __init__(self, width: int, *, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, device=device) for _ in range(2))
        self.query, self.key, self.value = (
            normal_linear(width, width, bias=False, generator=generator, device=device)
            for _ in range(3)
        )
        self.project = normal_linear(width, width, generator=generator, device=device)
        self.widen = normal_linear(width, RATIO * width, generator=generator, device=device)
        self.narrow = normal_linear(RATIO * width, width, generator=generator, device=device)

    def forward(self, tokens: Sequence[Tensor], patches: Tensor) -> list[Tensor]:
        """Return the embedding of each task, (B, d), from its token (d,) and patches (B, T, d)."""
        seen = self.norm1(patches)
        keys, values = self.key(seen), self.value(seen)  # the same for all tasks
        embeddings = []
        for token in tokens:
            own = token.expand(len(patches), 1, -1)
            normed = self.norm1(own)
            both = (
                torch.cat([project(normed), part], dim=1)
                for project, part in ((self.key, keys), (self.value, values))
            )
            own = own + self.project(attend(self.query(normed), *both))
            own = own + self.narrow(F.gelu(self.widen(self.norm2(own))))
            embeddings.append(own[:, 0])
        return embeddings


def normal_linear(
    inputs: int,
    outputs: int,
    *,
    bias: bool = True,
    generator: torch.Generator,
    device: torch.device,
) -> nn.Linear:
    """Return a layer with DeiT's initial values, drawn on the CPU."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, device="cpu")
    nn.init.trunc_normal_(layer.weight, std=INIT_STD, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer.to(device)


def _projection(width: int, generator: torch.Generator, device: torch.device) -> nn.Linear:
    """Return a square layer without bias, Xavier-normal, drawn on the CPU."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, width, bias=False, device="cpu")
    nn.init.xavier_normal_(layer.weight, generator=generator)
    return layer.to(device)
