"""Tiny models and samples, and the inner products of their gradients by explicit autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

OUTPUTS = 6
SHAPE = (1, 5, 5)
OLD_Y = torch.tensor([0, 0, 0, 1, 3])  # unequal, so that the kinds of average differ
NEW_Y = torch.tensor([2, 5, 2, 5, 2, 2])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def samples(dtype=torch.float64, seed=1):
    """A memory and current data."""
    x = torch.randn(len(OLD_Y) + len(NEW_Y), *SHAPE, generator=seeded(seed), dtype=torch.float64)
    x = x.to(dtype)
    return (x[: len(OLD_Y)], OLD_Y), (x[len(OLD_Y) :], NEW_Y)


class Residual(nn.Module):
    """A network of the user's own: convolutions, BatchNorm, a shortcut, dropout, ReLU in place."""

    def __init__(self, bias=True):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.block = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.frozen = nn.Conv2d(3, 3, 1).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(3, OUTPUTS, bias=bias)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)), inplace=True)
        h = h + self.frozen(self.block(h))
        return self.classifier(self.dropout(h.mean(dim=(2, 3))))


def sequential(bias=True):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(25, 7),
        nn.BatchNorm1d(7),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(7, OUTPUTS, bias=bias),
    )


def linear(bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(25, OUTPUTS, bias=bias))


MODELS = {"sequential": sequential, "residual": Residual, "linear": linear}


def make(kind, bias=True, seed=3, dtype=torch.float64):
    """A model in training mode, with statistics and weights far from their defaults."""
    generator = seeded(seed)
    model = MODELS[kind](bias).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.6 * values)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
    return model.train()


def one_hot(y, dtype=torch.float64):
    return F.one_hot(y, OUTPUTS).to(dtype)


def last_layer_of(model):
    return [*model.modules()][-1]


def parameters_of(model, whole_network):
    module = model if whole_network else last_layer_of(model)
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def gradient(model, whole_network, x, target):
    """Of one sample, as a vector, in evaluation mode."""
    was = {module: module.training for module in model.modules()}
    model.eval()
    loss = F.cross_entropy(model(x[None]), target[None])
    for module, training in was.items():
        module.training = training
    parameters = parameters_of(model, whole_network)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(parameter).flatten() if part is None else part.flatten()
            for parameter, part in zip(parameters, gradients, strict=True)
        ]
    )


def memory_gradient(model, whole_network, memory, average):
    """ḡ_buf: the mean over samples, or over classes of each class's mean."""
    x, y = memory
    each = torch.stack(
        [gradient(model, whole_network, *sample) for sample in zip(x, one_hot(y), strict=True)]
    )
    if average == "sample":
        return each.mean(dim=0)
    return torch.stack([each[y == label].mean(dim=0) for label in y.unique()]).mean(dim=0)


def products(model, whole_network, memory, x, targets, average):
    """⟨ḡ_buf, g⟩ of every sample."""
    remembered = memory_gradient(model, whole_network, memory, average)
    return torch.stack(
        [
            remembered @ gradient(model, whole_network, *sample)
            for sample in zip(x, targets, strict=True)
        ]
    )


# --- the functions above as fixtures --------------------------------------------------------


@pytest.fixture(scope="session", name="make")
def _make():
    return make


@pytest.fixture(scope="session", name="samples")
def _samples():
    return samples


@pytest.fixture(scope="session")
def everyone():
    """Return a function that returns the current data and the memory together."""

    def everyone():
        memory, current = samples()
        return tuple(torch.cat(parts) for parts in zip(current, memory, strict=True))

    return everyone


@pytest.fixture(scope="session", name="seeded")
def _seeded():
    return seeded


@pytest.fixture(scope="session", name="one_hot")
def _one_hot():
    return one_hot


@pytest.fixture(scope="session", name="products")
def _products():
    return products


@pytest.fixture(scope="session", name="gradient")
def _gradient():
    return gradient


@pytest.fixture(scope="session", name="memory_gradient")
def _memory_gradient():
    return memory_gradient


@pytest.fixture(scope="session", name="last_layer_of")
def _last_layer_of():
    return last_layer_of
