"""The written-out gradient against autograd's, to the last bit, and where it must not be used."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

from gradmix.models import MLP, Part, ResNet18, grow_head
from gradmix.models.mlp import FlatPart
from gradmix.models.mlp_gradient import cross_entropy, layers_of


def by_autograd(model, x, targets):
    loss = F.cross_entropy(model(x), targets)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def written_out(model, x, targets):
    loss = cross_entropy(layers_of(model), x, targets)
    assert not loss.requires_grad
    return [loss, *(parameter.grad for parameter in model.parameters())]


def assert_same_bits(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape
        assert own.stride() == other.stride()
        assert torch.equal(own, other)


@given(
    shape=st.sampled_from([(2,), (5,), (1, 4, 4), (3, 2, 2), (1, 28, 28)]),
    hidden=st.lists(st.sampled_from([2, 3, 7, 16, 33, 64]), min_size=1, max_size=4),
    outputs=st.sampled_from([2, 3, 10, 17, 100]),
    batch=st.integers(1, 40),
    soft=st.booleans(),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 9999),
)
def test_it_is_what_autograd_gives(shape, hidden, outputs, batch, soft, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MLP(torch.Size(shape).numel(), outputs, hidden)
    x = scale * torch.randn(batch, *shape, generator=generator)
    targets = torch.randint(outputs, (batch,), generator=generator)
    if soft:
        other = torch.randint(outputs, (batch,), generator=generator)
        share = torch.rand(batch, 1, generator=generator)
        targets = share * F.one_hot(targets, outputs) + (1 - share) * F.one_hot(other, outputs)
    assert_same_bits(written_out(model, x, targets), by_autograd(model, x, targets))


@pytest.mark.parametrize("batch", [128, 100])
@pytest.mark.parametrize("soft", [False, True])
def test_it_is_what_autograd_gives_at_the_papers_size(batch, soft):
    generator = torch.Generator().manual_seed(0)
    model, x = MLP(784, 10), torch.randn(batch, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (batch,), generator=generator)
    if soft:
        targets = torch.rand(batch, 10, generator=generator).softmax(1)
    assert_same_bits(written_out(model, x, targets), by_autograd(model, x, targets))


def test_old_gradients_are_replaced():
    model, x, y = MLP(6, 3, (4,)), torch.rand(5, 6), torch.zeros(5, dtype=torch.int64)
    assert_same_bits(written_out(model, x, y), by_autograd(model, x, y))
    x = x + 1
    assert_same_bits(written_out(model, x, y), by_autograd(model, x, y))


def test_a_label_without_an_output_is_an_error():
    model = MLP(6, 3, (4,))
    with pytest.raises(IndexError):
        cross_entropy(layers_of(model), torch.rand(1, 6), torch.tensor([3]))


def test_a_grown_head_is_as_good():
    model = MLP(6, 3, (4,))
    model.head = grow_head(model.head, 5)
    (_, _), (weight, bias) = layers_of(model)
    assert weight is model.head.weight
    assert bias is model.head.bias


def test_defaults_at_import_do_not_matter():
    script = """
import torch
torch.set_default_dtype(torch.float64)
from gradmix.models.mlp_gradient import ONE, cross_entropy, layers_of
torch.set_default_dtype(torch.float32)
from gradmix.models import MLP
cross_entropy(layers_of(MLP(6, 3, (4,))), torch.rand(2, 6), torch.tensor([0, 1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def nothing(*_):
    """A hook."""


class OtherFlatPart(FlatPart):
    """What it does is not known."""


class OtherPart(Part):
    """Likewise."""


class OtherParameter(nn.Parameter):
    """Likewise."""


def by_columns(weight):
    return nn.Parameter(weight.detach().t().contiguous().t())


class Doubled(MLP):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


CHANGES = {
    "hook on a layer": lambda m: m.shared[0].register_forward_hook(nothing),
    "hook before a layer": lambda m: m.special[0].register_forward_pre_hook(nothing),
    "hook on a part": lambda m: m.special.register_forward_hook(nothing),
    "hook on the network": lambda m: m.register_forward_hook(nothing),
    "hook on a layer's gradient": lambda m: m.head.register_full_backward_hook(nothing),
    "hook before it": lambda m: m.head.register_full_backward_pre_hook(nothing),
    "hook on a parameter": lambda m: m.head.weight.register_hook(nothing),
    "hook after a parameter": lambda m: m.head.bias.register_post_accumulate_grad_hook(nothing),
    "frozen": lambda m: m.shared.requires_grad_(False),
    "frozen bias": lambda m: m.head.bias.requires_grad_(False),
    "another precision": lambda m: m.bfloat16(),
    "another device": lambda m: m.to("meta"),
    "another activation": lambda m: m.shared.append(nn.Tanh()),
    "dropout": lambda m: m.special.insert(0, nn.Dropout()),
    "another head": lambda m: setattr(m, "head", nn.Sequential(m.head)),
    "no bias": lambda m: setattr(m, "head", nn.Linear(7, 3, bias=False)),
    "tied layers": lambda m: setattr(m.special[0], "weight", m.shared[1].weight),
    "weight norm": lambda m: parametrizations.weight_norm(m.shared[0]),
    "pruned": lambda m: prune.l1_unstructured(m.shared[0], "weight", 0.5),
    "patched": lambda m: setattr(m.head, "forward", nothing),
    "patched features": lambda m: setattr(m, "features", nothing),
    "another first part": lambda m: setattr(m, "shared", OtherFlatPart(*m.shared, mix_after=[0])),
    "another second part": lambda m: setattr(m, "special", OtherPart(*m.special)),
    "laid out by columns": lambda m: setattr(m.head, "weight", by_columns(m.head.weight)),
    "another kind of parameter": lambda m: setattr(m.head, "bias", OtherParameter(m.head.bias)),
    "compiled": lambda m: m.compile(backend="eager"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_network_is_left_to_autograd(change):
    model = MLP(6, 3, (7, 7, 7))
    assert layers_of(model) is not None
    change(model)
    assert layers_of(model) is None


@pytest.mark.parametrize(
    "model",
    [
        Doubled(6, 3, (4,)),
        ResNet18(3, width=4),
        nn.Sequential(MLP(6, 3, (4,))),
        MLP(1, 3, (4,)),
        MLP(6, 3, (4, 1, 4)),
        MLP(6, 1, (4,)),
    ],
)
def test_other_networks_are_left_to_autograd(model):
    assert layers_of(model) is None


def test_hooks_on_all_modules_and_what_changes_all_of_pytorch_are_left_to_autograd():
    model = MLP(6, 3, (4,))
    hook = register_module_forward_hook(nothing)
    assert layers_of(model) is None
    hook.remove()
    for context in (
        torch.autocast("cpu", torch.bfloat16),
        torch.no_grad(),
        torch.inference_mode(),
        torch.autograd.set_detect_anomaly(True),
    ):
        with context:
            assert layers_of(model) is None
    assert layers_of(model) is not None
