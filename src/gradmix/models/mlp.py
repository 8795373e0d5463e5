"""A multi-layer perceptron: the paper's network for MNIST and Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from gradmix.errors import InputError


class MLP(nn.Module):
    """Linear layers with ReLU, PyTorch's default initialisation, and a linear head.

    `mix` is applied to the hidden state at layer `at`: 0 is the flattened input, k the output
    of the k-th hidden layer; `mix_points` says how many such places there are.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("outputs", outputs)):
            if value < 1:
                raise InputError(f"{name} is {value}; a network needs at least 1")
        if not hidden or min(hidden) < 1:
            raise InputError(f"hidden is {tuple(hidden)}; give one or more widths of at least 1")
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(
            nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(widths)
        )
        self.head = nn.Linear(widths[-1], outputs)
        self.mix_points = len(widths)

    def features(
        self, x: Tensor, mix: Callable[[Tensor], Tensor] | None = None, at: int | None = None
    ) -> Tensor:
        """The input of the head, (B, width of the last hidden layer)."""
        if mix is not None and at not in range(self.mix_points):
            raise InputError(f"at is {at}; this network mixes at layers 0 to {self.mix_points - 1}")
        h = x.flatten(1)
        if mix is not None and at == 0:
            h = mix(h)
        for number, layer in enumerate(self.hidden, start=1):
            h = layer(h).relu()
            if mix is not None and at == number:
                h = mix(h)
        return h

    def forward(
        self, x: Tensor, mix: Callable[[Tensor], Tensor] | None = None, at: int | None = None
    ) -> Tensor:
        """Logits, (B, outputs)."""
        logits: Tensor = self.head(self.features(x, mix, at))
        return logits
