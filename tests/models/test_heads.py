"""Heads that grow: what is copied, what is new, and an optimizer that does not notice."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmix.errors import InputError
from gradmix.models import carry_over, drop_output, grow_head, widen_head

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.5),
    "momentum": lambda p: torch.optim.SGD(p, 0.5, momentum=0.5, weight_decay=0.25),
    "nesterov": lambda p: torch.optim.SGD(p, 0.5, momentum=0.5, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5),
}


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
    grown = grow_head(head, outputs + more)
    x = whole_numbers(5, inputs, seed=2)
    assert grown(x).shape == (5, outputs + more)
    assert torch.equal(grown(x)[:, :outputs], head(x))
    assert (grown.bias is None) == (not bias)


def test_new_rows_are_the_default_initialisation_of_the_global_generator():
    head = nn.Linear(4, 2)
    torch.manual_seed(5)
    fresh = nn.Linear(4, 5)
    torch.manual_seed(5)
    grown = grow_head(head, 5)
    assert torch.equal(grown.weight, torch.cat([head.weight, fresh.weight[2:]]))
    assert torch.equal(grown.bias, torch.cat([head.bias, fresh.bias[2:]]))
    assert grown.weight.is_leaf
    assert grown.weight.requires_grad
    assert grown.weight.grad_fn is None


def test_the_old_head_is_left_alone_and_dtype_and_mode_are_kept():
    head = nn.Linear(4, 2).double().eval()
    before = copy.deepcopy(head.state_dict())
    grown = grow_head(head, 3)
    with torch.no_grad():
        grown.weight.zero_()
    assert torch.equal(head.weight, before["weight"])
    assert grown.weight.dtype == torch.float64
    assert not grown.training


def test_a_widened_head_has_the_old_one_top_left():
    head = integer_head(3, 2)
    torch.manual_seed(5)
    fresh = nn.Linear(5, 4)
    torch.manual_seed(5)
    wide = widen_head(head, 5, 4)
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
        widen_head(nn.Linear(4, 2), inputs, outputs)


def step(head, optimizer, x, outputs=2, inputs=3):
    """One step on the old logits only, so that their gradient does not depend on growth."""
    optimizer.zero_grad()
    width = head.in_features - inputs
    padded = torch.cat([x, x.new_zeros(len(x), width)], dim=1)
    head(padded)[:, :outputs].square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 5), (6, 4), (3, 2)])
@pytest.mark.parametrize("steps", [0, 2])
def test_the_next_steps_of_old_entries_are_those_without_growth(name, inputs, outputs, steps):
    head = integer_head(3, 2).double()
    other = nn.Parameter(torch.ones(4))  # before and after the head, in groups of their own
    optimizer = OPTIMIZERS[name]([{"params": [other]}, {"params": head.parameters()}])
    batches = [whole_numbers(4, 3, seed=seed).double() / 8 for seed in range(steps + 3)]
    for x in batches[:steps]:
        step(head, optimizer, x)
    grown = widen_head(head, inputs, outputs)
    going_on = OPTIMIZERS[name]([{"params": [other]}, {"params": head.parameters()}])
    going_on.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # else they share steps
    carry_over(going_on, head.weight, grown.weight)
    carry_over(going_on, head.bias, grown.bias)
    for x in batches[steps:]:
        step(head, optimizer, x)
        step(grown, going_on, x)
        torch.testing.assert_close(grown.weight[:2, :3], head.weight, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(grown.bias[:2], head.bias, atol=1e-12, rtol=1e-12)


def test_momentum_by_hand():
    old = nn.Parameter(torch.tensor([[1.0, 2.0]]))
    optimizer = torch.optim.SGD([old], lr=1.0, momentum=0.5)
    old.grad = torch.tensor([[4.0, 8.0]])
    optimizer.step()  # buffer [4, 8], old [-3, -6]
    new = nn.Parameter(torch.cat([old.detach(), torch.tensor([[10.0, 20.0]])]))
    carry_over(optimizer, old, new)
    assert optimizer.state[new]["momentum_buffer"].tolist() == [[4.0, 8.0], [0.0, 0.0]]
    new.grad = torch.ones(2, 2)
    optimizer.step()  # buffer [[3, 5], [1, 1]]
    assert new.tolist() == [[-6.0, -11.0], [9.0, 19.0]]


def test_adams_step_count_and_moments_are_kept():
    old = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([old])
    for gradient in (torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.5])):
        old.grad = gradient
        optimizer.step()
    before = copy.deepcopy(dict(optimizer.state[old]))
    new = nn.Parameter(torch.ones(3))
    carry_over(optimizer, old, new)
    after = optimizer.state[new]
    assert float(after["step"]) == 2
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(after[key], torch.cat([before[key], torch.zeros(1)]))
    assert not any(value.requires_grad for value in after.values())


def test_place_group_and_settings_stay_and_the_old_parameter_is_forgotten():
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b, c]}], 0.1, 0.9)
    for parameter in (a, b, c):
        parameter.grad = torch.ones(2)
    optimizer.step()
    new = nn.Parameter(torch.ones(4))
    carry_over(optimizer, b, new)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]
    assert optimizer.param_groups[1]["params"][0] is new
    assert optimizer.param_groups[1]["params"][1] is c
    assert b not in optimizer.state
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)  # positions and shapes fit
    assert optimizer.state[new]["momentum_buffer"].shape == (4,)


def test_what_cannot_be_carried_over_is_refused_and_changes_nothing():
    old, stranger, small = (nn.Parameter(torch.ones(size)) for size in (3, 3, 2))
    optimizer = torch.optim.SGD([old], 0.1)
    with pytest.raises(InputError, match="old is not among"):
        carry_over(optimizer, stranger, nn.Parameter(torch.ones(4)))
    with pytest.raises(InputError, match=r"new has shape \(2,\).*\(3,\) or larger"):
        carry_over(optimizer, old, small)
    with pytest.raises(InputError, match=r"new has shape \(3, 3\)"):
        carry_over(optimizer, old, nn.Parameter(torch.ones(3, 3)))
    with pytest.raises(InputError, match="new is already"):
        carry_over(optimizer, old, old)
    assert optimizer.param_groups[0]["params"][0] is old


@pytest.mark.parametrize("bias", [True, False])
def test_dropping_an_output_keeps_the_others(bias):
    head = nn.Linear(3, 4, bias=bias).requires_grad_(False).eval()
    shorter = drop_output(head, 1)
    x = torch.randn(5, 3)
    torch.testing.assert_close(shorter(x), head(x)[:, [0, 2, 3]])
    assert not shorter.weight.requires_grad
    assert not shorter.training
