"""A vision transformer for small images, trained from scratch.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words", 2021. The paper says only
"initialized ViT". The sizes are DyTox's for CIFAR-100 (patch 4, width 384, 6 blocks, 12 heads).
The initialisation is DeiT's (truncated normal with deviation 0.02, biases 0).
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models.network import Mix, OwnNetwork, Part, check_sizes, draw_defaults

MLP_RATIO = 4  # width of a block's hidden layer / width of a token
INIT_STD = 0.02


def attend(query: Tensor, key: Tensor, value: Tensor, *, heads: int = 8) -> Tensor:
    """Return multi-head attention, (B, Q, d), of queries (B, Q, d) to tokens (B, T, d).

    There are `heads` heads, or the largest number that divides both `heads` and d.
    """
    heads = math.gcd(heads, query.shape[2])
    split = (tokens.unflatten(2, (heads, -1)).transpose(1, 2) for tokens in (query, key, value))
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


class PatchEmbedding(nn.Module):
    """Images (B, C, H, W) → tokens (B, T, dim): the class token, then patches, with positions."""

    def __init__(self, image_size: tuple[int, int], patch: int, in_channels: int, dim: int) -> None:
        super().__init__()
        height, width = image_size
        if height % patch or width % patch:
            raise InputError(
                f"patch is {patch}, which does not divide images of {height}x{width}; "
                "choose one that divides both sides"
            )
        self.image_size = image_size
        self.project = nn.Conv2d(in_channels, dim, patch, stride=patch)
        tokens = (height // patch) * (width // patch) + 1
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, tokens, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the class token and one token per patch, row by row."""
        if tuple(x.shape[2:]) != self.image_size:
            raise InputError(
                f"x has shape {tuple(x.shape)}; this network takes images of "
                f"{self.image_size[0]}x{self.image_size[1]}, fixed when it was built"
            )
        patches = self.project(x).flatten(2).transpose(1, 2)  # (B, T-1, dim)
        token = self.class_token.expand(len(x), -1, -1)
        return torch.cat([token, patches], dim=1) + self.positions


class TransformerBlock(nn.Module):
    """Pre-norm self-attention and a hidden layer of GELU, (B, T, dim) → (B, T, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.project = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, MLP_RATIO * dim)
        self.narrow = nn.Linear(MLP_RATIO * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform each token."""
        query, key, value = self.qkv(self.norm1(x)).chunk(3, dim=2)  # each (B, T, dim)
        x = x + self.project(attend(query, key, value, heads=self.heads))
        h: Tensor = self.narrow(F.gelu(self.widen(self.norm2(x))))
        return x + h


class ClassToken(nn.Module):
    """The normalised class token, (B, T, dim) → (B, dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Drop the other tokens."""
        token: Tensor = self.norm(x[:, 0])
        return token


class ViT(OwnNetwork):
    """A pre-norm transformer without dropout, with a class token and learned positions.

    Mix point 0 is the input, 1 follows the patch embedding, 2 follows half the blocks. The last
    block is the special part.

    Args:
        outputs: Classes.
        image_size: Side of square images, or (height, width).
        patch: Side of a patch; it must divide both sides.
        in_channels: Channels of the images.
        dim: Width of a token.
        depth: Number of blocks, at least 2.
        heads: Attention heads; they must divide `dim`.
    """

    def __init__(
        self,
        outputs: int,
        *,
        image_size: int | tuple[int, int] = 32,
        patch: int = 4,
        in_channels: int = 3,
        dim: int = 384,
        depth: int = 6,
        heads: int = 12,
    ) -> None:
        sides = (image_size, image_size) if isinstance(image_size, int) else image_size
        check_sizes(outputs=outputs, image_size=min(sides), patch=patch, in_channels=in_channels)
        check_sizes(dim=dim, heads=heads)
        if depth < 2:
            raise InputError(f"depth is {depth}; a shared and a special block make at least 2")
        if dim % heads:
            raise InputError(f"dim is {dim}, which {heads} heads do not divide; choose a multiple")
        embedding = PatchEmbedding(sides, patch, in_channels, dim)
        blocks = {f"block{n}": TransformerBlock(dim, heads) for n in range(1, depth + 1)}
        last, block = blocks.popitem()
        super().__init__(
            Part(OrderedDict(embedding=embedding, **blocks), mix_after=(0, 1, 1 + depth // 2)),
            Part(OrderedDict({last: block, "token": ClassToken(dim)})),
            nn.Linear(dim, outputs),
        )
        self.initialise(torch.default_generator)

    def tokens(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return the class token and the patches after the last block, (B, T, dim)."""
        hidden: Tensor = self.shared(x, mix, at)
        return self.special[0](hidden)  # type: ignore[no-any-return]

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the normalised class token, (B, dim)."""
        return self.special[1](tokens)  # type: ignore[no-any-return]

    def initialise(self, generator: torch.Generator) -> None:
        """Draw all weights from an explicit CPU generator."""
        draw_as_deit(self, generator)


def draw_as_deit(network: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights of a network by DeiT's distributions, from a CPU generator."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=INIT_STD, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, PatchEmbedding):
            for tokens in (module.class_token, module.positions):
                nn.init.trunc_normal_(tokens, std=INIT_STD, generator=generator)
        else:
            draw_defaults(module, generator)
