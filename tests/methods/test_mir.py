"""MIR: what a step on the new data would harm most is replayed, and scoring leaves no trace."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.models import adapt
from gradmix.randomness import RandomStreams
from gradmix.types import Samples


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (16, 16)), noise=60)


@pytest.fixture(scope="module")
def in_second_task(benchmark, make_training):
    def call(network="mlp", **given):
        run = make_training(
            "mir", network=network, benchmark=benchmark, exemplars=12, replay_batch_size=5, **given
        )
        run.stop_in_task(1)
        return run

    return call


def rises_by_brute_force(method, new, candidates):
    """A copy of the model takes a real SGD step on the new batch."""
    before, after = copy.deepcopy(method.model), copy.deepcopy(method.model)
    optimizer = torch.optim.SGD(after.parameters(), method.optimizer.param_groups[0]["lr"])
    optimizer.zero_grad()
    F.cross_entropy(after(new.x), new.y).backward()
    optimizer.step()
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(candidates.x), candidates.y, reduction="none")
            for model in (before, after)
        ]
    return losses[1] - losses[0]


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_retrieves_those_whose_loss_rises_most(network, in_second_task):
    run = in_second_task(network, options={"candidates": 3}, lr_steps=(1,), lr=0.2)
    method = run.method
    peek = RandomStreams(0)
    peek.load_state_dict(method.streams.state_dict())
    drawn = torch.randperm(24, generator=peek.device("replay"))[:15] + method.pool.num_new
    new = torch.tensor([3, 1, 20, 17, 30])
    rises = rises_by_brute_force(method, method.pool.batch(new), method.pool.batch(drawn))
    assert len(rises.unique()) == 15
    retrieved = method.retrieve(new)
    assert retrieved.tolist() == drawn[rises.argsort(descending=True)][:5].tolist()
    ours = method.interference(method.pool.batch(new), method.pool.batch(drawn))
    torch.testing.assert_close(ours, rises, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_a_step_is_cross_entropy_on_the_new_and_the_retrieved(network, in_second_task, one_step):
    """Retrieved by the network of the moment, so that nothing is planned before."""
    method = in_second_task(network).method
    assert method.plan is None
    assert method.stage_state_dict()["plan"] is None
    retrieve, retrieved = method.retrieve, []
    method.retrieve = lambda new: retrieved.append((new, retrieve(new))) or retrieved[-1][1]
    new = torch.tensor([3, 1, 20, 17, 30])
    before = copy.deepcopy(method.model)
    loss = one_step(method, new)
    ((given, old),) = retrieved
    assert torch.equal(given, new)
    x, y = method.pool.batch(torch.cat([new, old]))
    torch.testing.assert_close(loss, F.cross_entropy(before(x), y))


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_scoring_leaves_model_optimizer_and_statistics_untouched(
    network, assert_same, in_second_task
):
    method = in_second_task(network).method
    before = copy.deepcopy([method.model.state_dict(), method.optimizer.state_dict()])
    gradients = [parameter.grad.clone() for parameter in method.model.parameters()]
    modes = [module.training for module in method.model.modules()]
    assert all(modes)
    method.retrieve(torch.arange(8))
    assert_same([method.model.state_dict(), method.optimizer.state_dict()], before)
    assert_same([parameter.grad for parameter in method.model.parameters()], gradients)
    assert [module.training for module in method.model.modules()] == modes


def linear(outputs):
    """All zero, so that a step can be made by hand."""
    layer = nn.Linear(2, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return adapt(layer)


def test_the_rise_by_hand(blobs, make_training):
    """A step of 2 on (1, 0) of class 1 makes W = [[−1, 0], [1, 0]] and b = [−1, 1]."""
    rows = blobs(((4, 4),))  # only for its two classes
    method = make_training("mir", network=linear, benchmark=rows, lr=2.0).method
    method.optimizer = method.new_optimizer()
    x = torch.tensor([[1.0, 0.0], [-1.0, 5.0], [1.0, 7.0]])
    candidates = Samples(x, torch.tensor([0, 0, 1]))  # logits (−2, 2), (0, 0), (−2, 2)
    rise = method.interference(Samples(x[:1], torch.tensor([1])), candidates)
    expected = [math.log1p(math.exp(4)) - math.log(2), 0.0, math.log1p(math.exp(-4)) - math.log(2)]
    assert rise.tolist() == pytest.approx(expected, abs=1e-6)
    assert method.head.weight.abs().sum() == 0


def test_a_memory_no_larger_than_the_replay_batch_is_replayed_whole(benchmark, make_training):
    run = make_training("mir", benchmark=benchmark, exemplars=2, replay_batch_size=4)
    run.stop_in_task(1)
    method = run.method
    method.interference = None  # nothing to score
    assert sorted(method.retrieve(torch.arange(8)).tolist()) == [32, 33, 34, 35]


@pytest.mark.parametrize(("exemplars", "same"), [(2, True), (5, False)])
def test_then_it_is_er_and_says_so(exemplars, same, benchmark, make_training):
    """Two exemplars each of two classes fit into a replay batch of 4."""
    runs = [
        make_training(name, benchmark=benchmark, exemplars=exemplars, replay_batch_size=4)
        for name in ("mir", "er")
    ]
    for run in runs:
        run.stop_in_task(0)
        assert run.method.remark() is None
        run.stop_in_task(1, steps=4)
    remark = runs[0].method.remark()
    assert (remark is not None) == same
    if same:
        assert remark.startswith("the memory of 4 samples fits into the replay batch: MIR")
    one, other = (run.method.head.weight for run in runs)
    assert torch.equal(one, other) == same


def test_frozen_and_unused_parameters_stay_where_they_are(in_second_task):
    class Odd(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.frozen = nn.Linear(64, 6).requires_grad_(False)
            self.unused = nn.Linear(2, 2)
            self.last = nn.Linear(6, outputs)

        def forward(self, x):
            return self.last(self.frozen(x.flatten(1)).relu())

    run = in_second_task(lambda outputs: adapt(Odd(outputs)))
    method = run.method
    new, old = method.pool.batch(torch.arange(6)), method.pool.batch(torch.arange(32, 40))
    expected = rises_by_brute_force(method, new, old)
    torch.testing.assert_close(method.interference(new, old), expected, atol=1e-6, rtol=1e-4)
