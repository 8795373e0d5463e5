"""A-GEM: the gradient loses what opposes the memory's, and nothing else."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gradmix.methods.a_gem import project

NUMBERS = st.lists(st.floats(-5, 5, width=16), min_size=4, max_size=4)


def projected(gradient, reference):
    """As two parameters of two numbers each."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for parameter, values in zip(parameters, (gradient[:2], gradient[2:]), strict=True):
        parameter.grad = torch.tensor(values)
    project(parameters, list(torch.tensor(reference).split(2)))
    return torch.cat([parameter.grad for parameter in parameters])


def test_by_hand():
    """G · r = −4 and r · r = 4: g + r."""
    assert projected([1.0, -2.0, 0.0, 3.0], [1.0, 1.0, 1.0, -1.0]).tolist() == [2, -1, 1, 2]


def test_a_gradient_that_does_not_oppose_the_memory_stays():
    assert projected([1.0, -2.0, 0.0, 3.0], [1.0, 0.0, 0.0, 0.0]).tolist() == [1, -2, 0, 3]
    assert projected([1.0, -2.0, 0.0, 3.0], [0.0] * 4).tolist() == [1, -2, 0, 3]


@given(NUMBERS, NUMBERS)
def test_the_result_does_not_oppose_the_memory(gradient, reference):
    result = projected(gradient, reference)
    length = float(torch.tensor(reference).norm() * torch.tensor(gradient).norm())
    assert float(result @ torch.tensor(reference)) >= -1e-4 * (1 + length)


@pytest.mark.parametrize("clip", [None, 1e-2])
def test_the_loop_steps_along_the_projected_gradient(clip, make_training, blobs):
    run = make_training(
        "a-gem", benchmark=blobs(noise=60), lr=0.5, momentum=0.0, epochs=3, clip_norm=clip
    )
    run.stop_in_task(1)
    method, harmful = run.method, 0
    events = run.events()
    memory_gradient, seen = method.memory_gradient, []
    method.memory_gradient = lambda: seen.append(memory_gradient()) or seen[-1]
    for _ in range(4):
        before = copy.deepcopy(method.model)
        step = run.position.step
        next(events)
        if run.position.step != step + 1 or not seen:
            continue
        rows = method.new[step]
        loss = F.cross_entropy(before(method.pool.inputs(rows)), method.pool.y[rows])
        own = torch.cat([g.flatten() for g in torch.autograd.grad(loss, before.parameters())])
        other = torch.cat([g.flatten() for g in seen[-1]])
        harmful += bool(own @ other < 0)
        expected = own - min(0, own @ other / (other @ other)) * other
        if clip is not None:
            expected *= min(1, clip / expected.norm())
        moved = torch.cat(
            [
                (old - new).detach().flatten()
                for old, new in zip(before.parameters(), method.model.parameters(), strict=True)
            ]
        )
        torch.testing.assert_close(moved, 0.5 * expected, atol=1e-5, rtol=1e-3)
    assert harmful


def test_without_a_memory_it_is_fine_tuning(make_training):
    one, other = make_training("a-gem"), make_training("finetune")
    one.run_tasks(1)
    other.run_tasks(1)
    for a, b in zip(one.method.model.parameters(), other.method.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(one.method.memory) == 6
