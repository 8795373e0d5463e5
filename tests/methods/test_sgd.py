"""The optimizer against PyTorch's, to the last bit."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradmix.methods.sgd import SGD

SHAPES = [(16,), (10,), (256,), (3, 16), (16, 3), (5, 7), (4, 8, 3, 3), (8, 16, 1, 1), (0,), ()]


def make_params(shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    laid_out = [p.to(memory_format=torch.channels_last) if p.ndim == 4 else p for p in params]
    return [nn.Parameter(param) for param in laid_out]


def give_gradients(params, generator, missing=()):
    """Gradients of very different sizes, each laid out as its parameter is."""
    for number, param in enumerate(params):
        sizes = 10.0 ** torch.randint(-9, 4, param.shape, generator=generator)
        gradient = torch.randn(param.shape, generator=generator) * sizes
        param.grad = None
        if number not in missing:
            param.grad = torch.empty_like(param).copy_(gradient)


def trained(kind, shapes, gaps, dtype=torch.float32, **settings):
    """Parameters and momenta after as many steps as there are `gaps`, lists of those left out."""
    params, generator = make_params(shapes, dtype), torch.Generator().manual_seed(1)
    optimizer = kind(params, lr=0.0123, **settings)
    for missing in gaps:
        give_gradients(params, generator, missing)
        optimizer.step()
    return params, [optimizer.state[param].get("momentum_buffer") for param in params]


def assert_same_bits(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert (own is None) == (other is None)
        assert own is None or torch.equal(own, other)


@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6),
    gaps=st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    momentum=st.sampled_from([0.0, 0.37, 0.9]),
    weight_decay=st.sampled_from([0.0, 5e-4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gives_the_bits_of_pytorchs(shapes, gaps, momentum, weight_decay, dtype):
    settings = {"momentum": momentum, "weight_decay": weight_decay, "dtype": dtype}
    ours, theirs = (trained(kind, shapes, gaps, **settings) for kind in (SGD, torch.optim.SGD))
    assert_same_bits(ours[0], theirs[0])
    assert_same_bits(ours[1], theirs[1])


@pytest.mark.parametrize("threads", [1, 2])
def test_gives_the_bits_of_pytorchs_on_large_weights(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        settings = {"momentum": 0.9, "weight_decay": 1e-4}
        shapes = [(256, 784), (256,), (251, 251)]
        ours = trained(SGD, shapes, [()] * 5, **settings)
        theirs = trained(torch.optim.SGD, shapes, [()] * 5, **settings)
    finally:
        torch.set_num_threads(before)
    assert_same_bits(ours[0], theirs[0])
    assert_same_bits(ours[1], theirs[1])


def test_moves_whole_cache_lines_in_one_pass(monkeypatch):
    moved = []
    fused = torch._fused_sgd_

    def watch(params, *others, **settings):
        moved.append([tuple(param.shape) for param in params])
        fused(params, *others, **settings)

    monkeypatch.setattr(torch, "_fused_sgd_", watch)
    trained(SGD, [(3, 16), (10,), (256,)], [(), (), ()], momentum=0.9, weight_decay=0.0)
    assert moved == [[(3, 16), (256,)]] * 2  # after the first step, which begins the momenta


def test_other_devices_are_left_to_pytorch(monkeypatch):
    stepped = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure: stepped.append(self) or 3)
    for device in ("cpu", "meta"):
        param = nn.Parameter(torch.zeros(16, device=device))
        param.grad = torch.zeros_like(param)
        optimizer = SGD([param], lr=0.1, momentum=0.9, weight_decay=0.0)
        result = optimizer.step()
    assert stepped == [optimizer]
    assert result == 3


def test_a_gradient_in_another_order_of_memory():
    ours, theirs = make_params([(16, 32)]), make_params([(16, 32)])
    for params, kind in ((ours, SGD), (theirs, torch.optim.SGD)):
        optimizer = kind(params, lr=0.1, momentum=0.9, weight_decay=0.0)
        for turned in (True, False, True):
            gradient = torch.arange(512.0).view(32, 16).t()
            params[0].grad = gradient if turned else gradient.contiguous()
            optimizer.step()
    assert_same_bits(ours, theirs)


def test_continues_from_pytorchs_state():
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    ours, theirs = make_params([(16,), (10,)]), make_params([(16,), (10,)])
    usual = torch.optim.SGD(theirs, **settings)
    give_gradients(theirs, torch.Generator().manual_seed(2))
    usual.step()
    with torch.no_grad():
        for own, other in zip(ours, theirs, strict=True):
            own.copy_(other)
    optimizer = SGD(ours, **settings)
    optimizer.load_state_dict(deepcopy(usual.state_dict()))
    for params, moving in ((ours, optimizer), (theirs, usual)):
        give_gradients(params, torch.Generator().manual_seed(3))
        moving.step()
    assert_same_bits(ours, theirs)


def test_zero_grad_forgets_gradients():
    params = make_params([(16,), (10,)])
    optimizer = SGD(params, lr=0.1, momentum=0.9, weight_decay=0.0)
    give_gradients(params, torch.Generator().manual_seed(4))
    optimizer.zero_grad()
    assert [param.grad for param in params] == [None, None]
    give_gradients(params, torch.Generator().manual_seed(4))
    optimizer.zero_grad(set_to_none=False)
    assert [param.grad.count_nonzero().item() for param in params] == [0, 0]


def test_a_closure_is_called_with_gradients_on():
    (param,) = make_params([(16,)])
    optimizer = SGD([param], lr=0.1, momentum=0.9, weight_decay=0.0)

    def closure():
        loss = (param**2).sum()
        loss.backward()
        return loss

    before = param.detach().clone()
    assert optimizer.step(closure) == (before**2).sum()
    assert torch.equal(param, before.add(2 * before, alpha=-0.1))
