"""Random exemplars for the criterion's tests."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from gradmix.criterion import Exemplars


@dataclass
class Case:
    """A linear head and samples before it; `memory` says which of them are remembered."""

    head: nn.Linear
    exemplars: Exemplars
    memory: Tensor
    lam: float

    @property
    def remembered(self) -> Exemplars:
        return Exemplars(*(part[self.memory] for part in self.exemplars))


def make_case(sizes, d, extra, scale, lam, bias, seed, dtype=torch.float64) -> Case:
    """Classes of the given sizes under labels that leave gaps, `extra` outputs without class."""
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


ratios = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
cases = st.builds(
    make_case,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    d=st.integers(1, 6),
    extra=st.integers(0, 4),
    scale=st.sampled_from([0.1, 1.0, 30.0, 3000.0]),  # up to huge logits
    lam=ratios,
    bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
