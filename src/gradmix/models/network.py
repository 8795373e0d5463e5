"""The common shape of gradmix's networks, a shared part, a special part and a head; and the MLP.

    input ─ shared ─ hidden state ─ special ─ embedding (B, d) ─ head ─ logits (B, C)

ER and most methods train the whole network. MEMO keeps one shared part and a copy of the special
part for each task; FOSTER keeps two whole networks. Both call the parts with the same `mix` and
`at` as the whole.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError

Mix = Callable[[Tensor], Tensor]  # a function of hidden states; may return fewer rows


class Part(nn.Sequential):
    """Stages that run one after another, between which hidden states can be mixed.

    Args:
        stages: Modules, or one ordered dict of them.
        mix_after: The places where hidden states can be mixed: 0 is before the first stage, k
            after the k-th. A network numbers its mix points across its parts.
    """

    def __init__(
        self, *stages: nn.Module | OrderedDict[str, nn.Module], mix_after: Sequence[int] = ()
    ) -> None:
        super().__init__(*stages)  # type: ignore[arg-type]  # modules, or one dict of them
        places = tuple(mix_after)
        if list(places) != sorted(set(places) & set(range(len(self) + 1))):
            raise InputError(
                f"mix_after is {places}; these {len(self)} stages allow "
                f"increasing numbers from 0 to {len(self)}"
            )
        self.mix_after = places
        self.first_point, self.mix_points = 0, len(places)  # `Network` numbers its parts' points

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Run all stages; apply `mix` at point `at` if that point lies in this part."""
        if mix is None:
            for stage in self:
                x = stage(x)
            return x
        if at is None or not 0 <= at < self.mix_points:
            raise InputError(
                f"at is {at}; mix points count from 0, and this network has {self.mix_points}"
            )
        own = at - self.first_point
        place = self.mix_after[own] if 0 <= own < len(self.mix_after) else None
        for number, stage in enumerate(self):
            if number == place:
                x = mix(x)
            x = stage(x)
        return mix(x) if place == len(self) else x


class Network(nn.Module):
    """A backbone in two parts and a linear head.

    Args:
        shared: The generalised blocks, input → hidden state. Its first mix point must be 0.
        special: The specialised block, hidden state → embedding (B, d).
        head: The classifier, embedding → logits. It may be replaced by a larger one.

    Attributes:
        mix_points: Number of places where hidden states can be mixed; point 0 is the input.
        embedding_size: Width d of the embedding.
        draws_randomly: Whether a forward pass may draw from PyTorch's global generator, as
            dropout does.
        initialises_all: Whether `initialise` draws all weights of the network.
    """

    shared: Part
    special: Part
    head: nn.Linear
    draws_randomly = True
    initialises_all = False

    def __init__(self, shared: Part, special: Part, head: nn.Linear) -> None:
        super().__init__()
        if shared.mix_after[:1] != (0,):
            raise InputError(
                f"shared has mix_after={shared.mix_after}; its first number must be 0, the input"
            )
        self.shared, self.special = shared, special
        self.head = head  # registered last: the criterion takes the last linear layer
        self.embedding_size = head.in_features
        self.mix_points = len(shared.mix_after) + len(special.mix_after)
        shared.mix_points = special.mix_points = self.mix_points
        special.first_point = len(shared.mix_after)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw all weights from an explicit CPU generator, by PyTorch's default distributions."""
        for module in self.modules():
            draw_defaults(module, generator)

    def features(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return the input of the head, (B, d); `mix` is applied at point `at`."""
        embedding: Tensor = self.special(self.shared(x, mix, at), mix, at)
        return embedding

    def tokens(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return what attention sees of an input, (B, T, d); here the embedding as one token."""
        return self.features(x, mix, at)[:, None]

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the embedding, (B, d), of the tokens of an input."""
        return tokens.mean(dim=1)

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return logits, (B, C)."""
        logits: Tensor = self.head(self.features(x, mix, at))
        return logits


def remove_head(network: Network) -> Network:
    """Remove the head of a network whose features or tokens are used, and return the network."""
    del network.head
    return network


def check_sizes(**sizes: int) -> None:
    """Raise InputError for a size below 1, by name."""
    for name, value in sizes.items():
        if value < 1:
            raise InputError(f"{name} is {value}; a network needs at least 1")


class HiddenLayer(nn.Linear):
    """A linear layer and its ReLU in one module, which saves a call in every step."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name nn.Linear gives it
        """(B, in_features) → (B, out_features)."""
        return F.linear(input, self.weight, self.bias).relu_()


class FlatPart(Part):
    """Stages that take inputs of any shape and flatten them."""

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """(B, …) → (B, width)."""
        return super().forward(x.flatten(1), mix, at)


class OwnNetwork(Network):
    """A network of gradmix, which draws nothing in a forward pass and all weights explicitly."""

    draws_randomly = False
    initialises_all = True


class LinearModel(OwnNetwork):
    """A head on the inputs themselves, which are flattened; for frozen features.

    Its only mix point is the input. The criterion is exact for it: the input is the embedding.

    Args:
        inputs: Numbers per sample.
        outputs: Classes.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        check_sizes(inputs=inputs, outputs=outputs)
        super().__init__(FlatPart(mix_after=[0]), Part(), nn.Linear(inputs, outputs))


class MLP(OwnNetwork):
    """Linear layers with ReLU, PyTorch's default initialisation, and a linear head.

    Mix point 0 is the flattened input, point k the output of the k-th hidden layer. The last
    hidden layer is the special part.

    Args:
        inputs: Numbers per sample.
        outputs: Classes.
        hidden: Widths of the hidden layers.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256)) -> None:
        check_sizes(inputs=inputs, outputs=outputs)
        if not hidden or min(hidden) < 1:
            raise InputError(f"hidden is {tuple(hidden)}; give one or more widths of at least 1")
        layers = [HiddenLayer(*widths) for widths in pairwise([inputs, *hidden])]
        head = nn.Linear(hidden[-1], outputs)
        shared = FlatPart(*layers[:-1], mix_after=range(len(layers)))
        super().__init__(shared, Part(layers[-1], mix_after=[1]), head)


# --- initial weights from an explicit generator: PyTorch's defaults without its global state ------


def draw_defaults(module: nn.Module, generator: torch.Generator) -> None:
    """Give one layer PyTorch's default initial values; modules without such values are skipped.

    The values are those of the layer's own `reset_parameters` with the same random numbers.
    """
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
        if module.bias is not None:
            bound = 1 / math.sqrt(module.weight[0].numel())
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        module.reset_parameters()


def new_linear(
    inputs: int,
    outputs: int,
    bias: bool = True,
    *,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> nn.Linear:
    """Return a linear layer with default initial values, drawn on the CPU.

    On the meta device, the layer has no values.
    """
    if torch.device(device).type == "meta":
        return nn.Linear(inputs, outputs, bias, device="meta", dtype=dtype)
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias, device="cpu")
    draw_defaults(layer, generator)
    return layer.to(device, dtype)
