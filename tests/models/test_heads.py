"""Heads that grow and shrink: what is copied and what is new."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmix.errors import InputError
from gradmix.models import new_linear
from gradmix.models.heads import BlockLinear, align_weights, drop_output, grow_head, widen_head


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def whole_numbers(*shape, seed=0):
    """Small integers: sums of their products are exact in any order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def integer_head(inputs, outputs, bias=True):
    head = nn.Linear(inputs, outputs, bias)
    with torch.no_grad():
        head.weight.copy_(whole_numbers(outputs, inputs))
        if bias:
            head.bias.copy_(whole_numbers(outputs, seed=1))
    return head


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 6), st.booleans())
def test_old_logits_are_bit_identical_after_growing(inputs, outputs, more, bias):
    head = integer_head(inputs, outputs, bias)
    grown = grow_head(head, outputs + more, generator=seeded())
    x = whole_numbers(5, inputs, seed=2)
    assert grown(x).shape == (5, outputs + more)
    assert torch.equal(grown(x)[:, :outputs], head(x))
    assert (grown.bias is None) == (not bias)


def test_new_rows_are_pytorchs_default_from_the_generator():
    head = nn.Linear(4, 2)
    torch.manual_seed(5)
    fresh = nn.Linear(4, 5)
    grown = grow_head(head, 5, generator=seeded(5))
    assert torch.equal(grown.weight, torch.cat([head.weight, fresh.weight[2:]]))
    assert torch.equal(grown.bias, torch.cat([head.bias, fresh.bias[2:]]))
    assert grown.weight.is_leaf
    assert grown.weight.requires_grad
    assert grown.weight.grad_fn is None


def test_the_old_head_is_left_alone_and_dtype_and_mode_are_kept():
    head = nn.Linear(4, 2).double().eval()
    before = copy.deepcopy(head.state_dict())
    grown = grow_head(head, 3, generator=seeded())
    with torch.no_grad():
        grown.weight.zero_()
    assert torch.equal(head.weight, before["weight"])
    assert grown.weight.dtype == torch.float64
    assert not grown.training


def test_a_widened_head_has_the_old_one_top_left():
    head = integer_head(3, 2)
    torch.manual_seed(5)
    fresh = nn.Linear(5, 4)
    wide = widen_head(head, 5, 4, generator=seeded(5))
    expected = fresh.weight.detach().clone()
    expected[:2, :3] = head.weight.detach()
    assert torch.equal(wide.weight, expected)
    assert torch.equal(wide.bias, torch.cat([head.bias, fresh.bias[2:]]))
    x = torch.cat([whole_numbers(6, 3, seed=3), torch.zeros(6, 2)], dim=1)
    assert torch.equal(wide(x)[:, :2], head(x[:, :3]))


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [(4, 1, "outputs is 1; this head has 2"), (3, 2, "inputs is 3; this head has 4")],
)
def test_heads_only_grow(inputs, outputs, message):
    with pytest.raises(InputError, match=message):
        widen_head(nn.Linear(4, 2), inputs, outputs, generator=seeded())


@pytest.mark.parametrize("bias", [True, False])
def test_dropping_an_output_keeps_the_others(bias):
    head = nn.Linear(3, 4, bias=bias).requires_grad_(False).eval()
    shorter = drop_output(head, 1)
    x = torch.randn(5, 3)
    torch.testing.assert_close(shorter(x), head(x)[:, [0, 2, 3]])
    assert not shorter.weight.requires_grad
    assert not shorter.training


def test_new_layers_are_pytorchs_own_and_leave_the_global_generator_alone(global_state):
    torch.manual_seed(3)
    expected = nn.Linear(4, 3)
    before = global_state()
    layer = new_linear(4, 3, generator=seeded(3))
    assert global_state() == before
    assert torch.equal(layer.weight, expected.weight)
    assert torch.equal(layer.bias, expected.bias)
    assert new_linear(4, 3, generator=seeded(), device="meta").weight.is_meta


def test_alignment_by_hand():
    """Lengths 3 and 5 of old classes, 1 and 3 of new ones: 4 / 2. The last output is no class."""
    head = nn.Linear(2, 5)
    rows = [[3.0, 0.0], [0.0, -5.0], [1.0, 0.0], [0.0, 3.0], [7.0, 7.0]]
    with torch.no_grad():
        head.weight.copy_(torch.tensor(rows))
    bias = head.bias.clone()
    align_weights(head, 2, 4)
    assert head.weight.tolist() == [*rows[:2], [2.0, 0.0], [0.0, 6.0], rows[4]]
    assert torch.equal(head.bias, bias)


def test_blocks_are_a_linear_layer_with_zeros_between_them():
    blocks = [nn.Linear(2, 3), nn.Linear(3, 1)]
    head = BlockLinear(blocks)
    x = torch.rand(4, 5)
    assert isinstance(head, nn.Linear)
    assert (head.in_features, head.out_features) == (5, 4)
    torch.testing.assert_close(head(x), torch.nn.functional.linear(x, head.weight, head.bias))
    assert torch.equal(head(x), torch.cat([blocks[0](x[:, :2]), blocks[1](x[:, 2:])], 1))
    assert head.mask.tolist() == [[True] * 2 + [False] * 3] * 3 + [[False] * 2 + [True] * 3]
    assert {name for name, _ in head.named_parameters()} == {
        f"blocks.{block}.{part}" for block in (0, 1) for part in ("weight", "bias")
    }
