"""A multi-layer perceptron: the paper's network for MNIST and Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models.base import Linear, Mix, Network, Part, check_sizes


class HiddenLayer(Linear):
    """A linear layer and its ReLU in one module: a call less in every step."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name nn.Linear gives it
        """(B, in_features) → (B, out_features), none below 0."""
        return F.linear(input, self.weight, self.bias).relu_()


class FlatPart(Part):
    """Stages for inputs of any shape, which are rows to them."""

    def forward(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """As `Part`, on the flattened input."""
        return super().forward(x.flatten(1), mix, at)


class MLP(Network):
    """Linear layers with ReLU, PyTorch's default initialisation, and a linear head.

    Mix point 0 is the flattened input, k the output of the k-th hidden layer. The last hidden
    layer is the special part.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256)) -> None:
        check_sizes(inputs=inputs, outputs=outputs)
        if not hidden or min(hidden) < 1:
            raise InputError(f"hidden is {tuple(hidden)}; give one or more widths of at least 1")
        layers = [HiddenLayer(*widths) for widths in pairwise([inputs, *hidden])]
        head = Linear(hidden[-1], outputs)
        shared = FlatPart(*layers[:-1], mix_after=range(len(layers)))
        super().__init__(shared, Part(layers[-1], mix_after=[1]), head)

    @property
    def hidden(self) -> list[HiddenLayer]:
        """The hidden layers in order."""
        stages = [*self.shared, *self.special]
        return [stage for stage in stages if isinstance(stage, HiddenLayer)]
