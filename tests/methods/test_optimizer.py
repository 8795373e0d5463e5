"""The state of optimizers: exact round trips, and only tensors that fit their parameters."""

import copy

import pytest
import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.methods.optimizer import load_optimizer, optimizer_state

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
}


def make(name, layout=torch.contiguous_format):
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    network = network.to(memory_format=layout)
    return network, OPTIMIZERS[name](network.parameters())


def step(network, optimizer, seed):
    optimizer.zero_grad()
    x = torch.rand(4, 2, 2, 2, generator=torch.Generator().manual_seed(seed))
    network(x).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_after_loading_are_the_same(name, layout, assert_same):
    network, optimizer = make(name, layout)
    for seed in (1, 2):
        step(network, optimizer, seed)
    again, other = make(name, layout)
    again.load_state_dict(network.state_dict())
    load_optimizer(other, copy.deepcopy(optimizer_state(optimizer)))
    for seed in (3, 4):
        step(network, optimizer, seed)
        step(again, other, seed)
        assert_same(again.state_dict(), network.state_dict())
    assert_same(optimizer_state(other), optimizer_state(optimizer))


def test_the_state_before_the_first_step_is_empty():
    _, optimizer = make("momentum")
    state = optimizer_state(optimizer)
    assert state == [{}] * 4
    load_optimizer(optimizer, state)
    assert not optimizer.state


BAD = {
    "shorter": lambda value: value.flatten()[:1],
    "longer": lambda value: torch.cat([value, value]),
    "another shape": lambda value: value[None],
    "another dtype": lambda value: value.double(),
    "half precision": lambda value: value.half(),
    "integers": lambda value: value.long(),
    "nothing": lambda value: value[:0],
    "a scalar": lambda value: torch.tensor(1.0),
    "NaN": lambda value: torch.full_like(value, torch.nan),
    "infinite": lambda value: torch.full_like(value, torch.inf),
    "text": lambda value: "buffer",
    "a number": lambda value: 3,
    "a list": lambda value: value.tolist(),
    "without values": lambda value: value.to("meta"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("name", "part"), [("momentum", "momentum_buffer"), ("adam", "exp_avg"), ("adam", "exp_avg_sq")]
)
def test_a_tensor_that_does_not_fit_is_refused_and_nothing_changes(name, part, bad):
    """A momentum buffer that was too short used to crash the process."""
    network, optimizer = make(name)
    step(network, optimizer, 1)
    state = copy.deepcopy(optimizer_state(optimizer))
    for number in range(4):
        changed = copy.deepcopy(state)
        changed[number][part] = BAD[bad](changed[number][part])
        _, other = make(name)
        with pytest.raises(InputError, match=rf"optimizer\.{number}\.{part}"):
            load_optimizer(other, changed)
        assert not other.state


def test_another_number_of_parameters_is_refused():
    _, optimizer = make("momentum")
    with pytest.raises(InputError, match="state of 3 parameters is saved; there are 4"):
        load_optimizer(optimizer, [{}] * 3)


@pytest.mark.parametrize("step_count", [torch.ones(2), torch.tensor(torch.nan), -1.0, "3", None])
def test_a_wrong_step_count_is_refused(step_count):
    network, optimizer = make("adam")
    step(network, optimizer, 1)
    state = copy.deepcopy(optimizer_state(optimizer))
    state[2]["step"] = step_count
    with pytest.raises(InputError, match=r"optimizer\.2\.step"):
        load_optimizer(make("adam")[1], state)
