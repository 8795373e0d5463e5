"""Random exemplars for tests of the criterion."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from gradmix.criterion.scores import Exemplars
from gradmix.types import LinearHead


@dataclass
class Case:
    """A linear head and samples before it; the mask `memory` marks those in memory."""

    head: nn.Linear
    exemplars: Exemplars
    memory: Tensor
    lam: float

    @property
    def remembered(self) -> Exemplars:
        """The samples in memory."""
        return Exemplars(*(part[self.memory] for part in self.exemplars))

    @property
    def weights(self) -> Tensor:
        """The weight of each sample in the memory's mean gradient."""
        return self.memory.double() / self.memory.sum()

    @property
    def linear_head(self) -> LinearHead:
        """The head as numbers."""
        bias = None if self.head.bias is None else self.head.bias.detach()
        return LinearHead(self.head.weight.detach(), bias)


def _make_case(sizes, d, extra, scale, lam, bias, seed, dtype=torch.float64) -> Case:
    generator = torch.Generator().manual_seed(seed)
    outputs = len(sizes) + extra
    labels = torch.randperm(outputs, generator=generator)[: len(sizes)]
    y = labels.repeat_interleave(torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=generator)]
    head = nn.Linear(d, outputs, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    X = torch.randn(len(y), d, generator=generator, dtype=dtype)
    memory = torch.rand(len(y), generator=generator) < 0.6
    memory[0] = True
    with torch.no_grad():
        return Case(head, Exemplars(X, head(X), y), memory, lam)


@pytest.fixture(scope="session")
def make_case():
    """Return a function that makes a case.

    Its classes have the given sizes and labels with gaps; `extra` outputs have no class.
    """
    return _make_case


@pytest.fixture(scope="session")
def cases():
    """Return the strategy of all cases, to draw from by `st.data()`."""
    return st.builds(
        _make_case,
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
        d=st.integers(1, 6),
        extra=st.integers(0, 4),
        scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]),  # up to huge logits
        lam=st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1)),
        bias=st.booleans(),
        seed=st.integers(0, 2**31),
    )
