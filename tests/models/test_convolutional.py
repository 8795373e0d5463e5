"""ResNet-18: its sizes, its arithmetic from the weights, image sizes and memory formats."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models import ResNet18


def count(network):
    return sum(p.numel() for p in network.parameters())


def test_parameter_counts_are_the_known_ones():
    assert count(ResNet18(10)) == 11_173_962  # kuangliu/pytorch-cifar
    assert count(ResNet18(1000, stem="7x7")) == 11_689_512  # torchvision
    assert count(ResNet18(10, in_channels=1)) == 11_173_962 - 2 * 9 * 64


def convolved(x, weights, conv, norm, stride, padding):
    h = F.conv2d(x, weights[f"{conv}.weight"], stride=stride, padding=padding)
    keys = ("running_mean", "running_var", "weight", "bias")
    mean, var, scale, shift = (weights[f"{norm}.{key}"].view(-1, 1, 1) for key in keys)
    return (h - mean) / (var + 1e-5).sqrt() * scale + shift


def by_hand(weights, x, large):
    """The embedding in evaluation mode, from the tensors alone."""
    stem = "shared.stem"
    h = convolved(x, weights, f"{stem}.0", f"{stem}.1", *((2, 3) if large else (1, 1))).relu()
    h = F.max_pool2d(h, 3, 2, 1) if large else h
    for layer in range(1, 5):
        for number in range(2):
            name = f"{'special' if layer == 4 else 'shared'}.layer{layer}.{number}"
            stride = 2 if layer > 1 and number == 0 else 1
            short = h
            if stride == 2:
                down = f"{name}.downsample"
                short = convolved(h, weights, f"{down}.0", f"{down}.1", 2, 0)
            h = convolved(h, weights, f"{name}.conv1", f"{name}.bn1", stride, 1).relu()
            h = (convolved(h, weights, f"{name}.conv2", f"{name}.bn2", 1, 1) + short).relu()
    return h.mean((2, 3))


@pytest.mark.parametrize("stem", ["3x3", "7x7"])
def test_forward_is_the_residual_network_of_its_weights(stem):
    network = ResNet18(3, in_channels=2, width=4, stem=stem).double()
    x = torch.rand(4, 2, 9, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        network(x + torch.rand(()))  # statistics other than 0 and 1
    features = network.eval().features(x)
    torch.testing.assert_close(features, by_hand(network.state_dict(), x, stem == "7x7"))


@pytest.mark.parametrize("stem", ["3x3", "7x7"])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (33, 47), (64, 64), (224, 224)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_image_size(stem, size, channels):
    network = ResNet18(3, in_channels=channels, width=1, stem=stem)
    assert network(torch.rand(2, channels, *size)).shape == (2, 3)


@pytest.mark.parametrize(("stem", "side"), [("3x3", 4), ("7x7", 1)])
def test_the_map_before_the_special_part(stem, side):
    network = ResNet18(3, width=2, stem=stem)
    assert network.shared(torch.rand(2, 3, 16, 16)).shape == (2, 8, side, side)


def test_channels_last_gives_the_same_and_stays_channels_last():
    torch.manual_seed(0)
    network, x = ResNet18(3, width=8).eval(), torch.rand(4, 3, 16, 16)
    expected = network(x)
    network = network.to(memory_format=torch.channels_last)
    last = x.to(memory_format=torch.channels_last)
    assert network.shared(last).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(last), expected)


def test_weights_are_pytorchs_default_drawn_in_order():
    torch.manual_seed(3)
    stem = nn.Conv2d(3, 4, 3, bias=False).weight
    first = nn.Conv2d(4, 4, 3, bias=False).weight
    torch.manual_seed(3)
    network = ResNet18(5, width=4)
    assert torch.equal(network.shared.stem[0].weight, stem)
    assert torch.equal(network.shared.layer1[0].conv1.weight, first)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            assert 0.8 * bound < float(module.weight.detach().abs().max()) <= bound


@pytest.mark.parametrize("bad", [{"outputs": 0}, {"width": 0}, {"in_channels": -1}])
def test_bad_sizes_are_refused(bad):
    name, value = next(iter(bad.items()))
    with pytest.raises(InputError, match=f"{name} is {value}"):
        ResNet18(**{"outputs": 3, **bad})


def test_an_unknown_stem_is_refused():
    with pytest.raises(InputError, match=r"stem is '5x5'.*'3x3' or '7x7'"):
        ResNet18(3, stem="5x5")
