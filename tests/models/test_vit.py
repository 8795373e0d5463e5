"""The ViT: its size, its arithmetic from the weights, and what it refuses."""

import math

import pytest
import torch
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models import ViT


def small(**changes):
    settings = {"outputs": 3, "image_size": (6, 8), "patch": 2, "in_channels": 2, "dim": 12}
    return ViT(**{**settings, "depth": 3, "heads": 4, **changes})


def test_the_parameter_count_is_the_sum_over_its_layers():
    block = (384 * 1152 + 1152) + (384 * 384 + 384) + (384 * 1536 + 1536) + (1536 * 384 + 384)
    block += 2 * 2 * 384
    rest = (48 * 384 + 384) + 384 + 65 * 384 + 2 * 384 + (384 * 10 + 10)
    assert 6 * block + rest == 10_695_562
    assert sum(p.numel() for p in ViT(10).parameters()) == 10_695_562


def normed(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()


def attended(block, x, heads):
    """Softmax attention, one head and one query at a time."""
    size = x.shape[-1] // heads
    q, k, v = (x @ block.qkv.weight.T + block.qkv.bias).chunk(3, dim=-1)
    out = torch.zeros_like(x)
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        for token in range(x.shape[1]):
            scores = (q[:, token, None, own] * k[:, :, own]).sum(-1) / math.sqrt(size)  # (B, T)
            out[:, token, own] = (scores.softmax(-1)[..., None] * v[:, :, own]).sum(1)
    return out @ block.project.weight.T + block.project.bias


def by_hand(network, x, patch, heads):
    """The embedding; normalisations have weight 1 and bias 0 at the start."""
    embedding = network.shared.embedding
    kernel = embedding.project.weight.flatten(1)
    tokens = [embedding.class_token.expand(len(x), 1, -1)[:, 0]]
    for top in range(0, x.shape[2], patch):
        for left in range(0, x.shape[3], patch):
            piece = x[:, :, top : top + patch, left : left + patch].flatten(1)
            tokens.append(piece @ kernel.T + embedding.project.bias)
    h = torch.stack(tokens, dim=1) + embedding.positions
    for block in (network.shared.block1, network.shared.block2, network.special.block3):
        h = h + attended(block, normed(h), heads)
        wide = F.gelu(normed(h) @ block.widen.weight.T + block.widen.bias)
        h = h + wide @ block.narrow.weight.T + block.narrow.bias
    return normed(h[:, 0])


def test_forward_is_the_transformer_of_its_weights():
    torch.manual_seed(0)
    network = small().double()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.data *= 20  # so that attention is far from uniform
    x = torch.rand(3, 2, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(network.features(x), by_hand(network, x, patch=2, heads=4))


def test_tokens_are_the_class_token_and_one_per_patch():
    network = small()
    assert network.shared(torch.rand(3, 2, 6, 8)).shape == (3, 1 + 3 * 4, 12)


def test_the_initialisation_is_a_truncated_normal_and_zero_biases():
    torch.manual_seed(0)
    network = ViT(10, dim=64, depth=2, heads=4)
    blocks = [network.shared.block1, network.special.block2]
    layers = [layer for b in blocks for layer in (b.qkv, b.project, b.widen, b.narrow)]
    for layer in [*layers, network.head]:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not layer.bias.any()
    assert network.shared.embedding.positions.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("depth", [2, 3, 5, 6])
def test_point_2_is_after_half_the_blocks(depth):
    network = small(depth=depth)
    x, seen = torch.rand(2, 2, 6, 8), []
    network(x, lambda h: seen.append(h) or h, 2)
    stages = [network.shared.embedding, *list(network.shared)[1 : 1 + depth // 2]]
    for stage in stages:
        x = stage(x)
    assert torch.equal(seen[0], x)


def test_images_of_another_size_are_refused():
    with pytest.raises(InputError, match=r"x has shape \(3, 2, 8, 8\).*images of 6x8"):
        small()(torch.rand(3, 2, 8, 8))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"patch": 4}, "patch is 4, which does not divide images of 6x8"),
        ({"patch": 0}, "patch is 0"),
        ({"image_size": 0}, "image_size is 0"),
        ({"heads": 5}, "dim is 12, which 5 heads do not divide"),
        ({"heads": 0}, "heads is 0"),
        ({"dim": 0}, "dim is 0"),
        ({"depth": 1}, "depth is 1"),
        ({"outputs": 0}, "outputs is 0"),
        ({"in_channels": 0}, "in_channels is 0"),
    ],
)
def test_bad_sizes_are_refused(bad, message):
    with pytest.raises(InputError, match=message):
        small(**bad)
