"""GSS: what the memory keeps differs in its gradients, within the budget."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.memory import GreedyBuffer
from gradmix.models import adapt
from gradmix.training.loop import EpochDone, StepDone, TaskDone


def biasless(outputs):
    return adapt(nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Linear(7, outputs, bias=False)))


def explicit_cosines(method, index):
    """Of the gradients of the head, each by a backward pass of its own."""
    rows = []
    method.model.eval()
    for x, y in zip(method.pool.inputs(index), method.pool.y[index], strict=True):
        loss = F.cross_entropy(method.model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(method.head.parameters()))
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    method.model.train()
    rows = F.normalize(torch.stack(rows), dim=1)
    return rows @ rows.T


@pytest.mark.parametrize("network", ["mlp", "resnet", biasless])
def test_scores_are_cosines_of_explicit_gradients(network, blobs, make_training):
    """A buffer with room for all holds 1 + the highest cosine with those before."""
    one_task = blobs(((8, 8),))
    run = make_training("gss", network=network, benchmark=one_task, lr=0.01, exemplars=9)
    run.stop_in_task(0, steps=2)
    method, buffers = run.method, {}
    index = torch.tensor([1, 9, 3, 11, 5, 2, 14])
    method.offer(buffers, index)
    for label, buffer in buffers.items():
        own = index[method.pool.y[index] == label]
        assert buffer.index.tolist() == own.tolist()
        cosines = explicit_cosines(method, own)
        expected = [1.1] + [1 + float(cosines[k, :k].max()) for k in range(1, len(own))]
        assert buffer.scores.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["gss", "gss-stream"])
@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({"exemplars_per_class": 3}, [[3, 3], [3, 3, 3, 3], [3] * 6]),
        ({"total": 14}, [[7, 7], [4, 4, 3, 3], [3, 3, 2, 2, 2, 2]]),
        ({"total": 6}, [[3, 3], [2, 2, 1, 1], [1] * 6]),
    ],
)
def test_every_class_has_its_number_and_the_budget_holds(
    name, memory, expected, blobs, make_training
):
    run = make_training(name, memory=memory, benchmark=blobs(((16, 16), (9, 8), (8, 8))))
    counts = []
    for event in run.events():
        assert len(run.method.memory) <= memory.get("total", 100)
        if isinstance(event, TaskDone):
            counts.append(run.method.memory.y.bincount().tolist())
    assert counts == expected
    everything = torch.cat([task.train.x for task in run.benchmark.tasks]).flatten(1)
    labels = torch.cat([task.train.y for task in run.benchmark.tasks])
    kept, y = run.method.memory.samples
    for row, label in zip(kept.flatten(1), y, strict=True):
        assert (everything[labels == label] == row).all(dim=1).any()
    assert len(kept.flatten(1).unique(dim=0)) == len(kept)


def test_when_the_quota_shrinks_the_most_diverse_stay(blobs, make_training):
    run = make_training("gss", memory={"total": 12}, benchmark=blobs(((16, 16), (9, 8))))
    keep, chosen = run.method.keep, {}
    run.method.keep = lambda new, buffers: chosen.update(buffers) or keep(new, buffers)
    run.run_tasks(1)
    memory, x = run.method.memory, run.benchmark.tasks[0].train.x
    best = {}
    for label in (0, 1):  # those least like the others, which the lowest scores tell
        order = chosen[label].scores.argsort()
        assert len(chosen[label].scores.unique()) == 6
        best[label] = x[chosen[label].index[order]][:3]
    run.finish()
    for label in (0, 1):
        assert torch.equal(memory.x[memory.y == label], best[label])


def test_the_stream_chooses_in_the_first_epoch_only(assert_same, blobs, make_training):
    run = make_training("gss-stream", epochs=3, benchmark=blobs(((8, 9), (8, 8))), exemplars=3)
    method, offers = run.method, []
    offer = method.offer
    method.offer = lambda buffers, index: offers.append(index) or offer(buffers, index)
    saved = None
    for event in run.events():
        if isinstance(event, StepDone):
            if event.epoch == 0:  # batch by batch, in the order of training
                assert torch.equal(offers[-1], method.new[event.step - 1])
            assert len(offers) == 2 * event.task + (2 if event.epoch else event.step)
        if isinstance(event, EpochDone):
            buffers = {label: b.state_dict() for label, b in method._buffers.items()}
            if event.epoch > 1:
                assert_same(buffers, saved)
            saved = copy.deepcopy(buffers)
        if isinstance(event, TaskDone):
            indices = torch.cat([buffer["index"] for buffer in saved.values()])
            samples = run.benchmark.tasks[event.task].train
            stored = method.memory.x[method.memory.y >= 2 * event.task].flatten(1)
            expected = samples.x[indices].flatten(1)
            assert sorted(stored.tolist()) == sorted(expected.tolist())


def test_the_stream_compares_gradients_of_the_moment(assert_same, make_training):
    """After one step the buffer holds the directions that the first weights gave."""
    run = make_training("gss-stream", exemplars=20)
    fresh = make_training("gss", exemplars=20)
    run.stop_in_task(0)
    fresh.method.begin_task(fresh._pool(fresh._tasks[0].train), 2)
    buffers: dict[int, GreedyBuffer] = {}
    fresh.method.offer(buffers, run.method.new[0])
    assert_same(
        {label: b.state_dict() for label, b in run.method._buffers.items()},
        {label: b.state_dict() for label, b in buffers.items()},
    )


def test_choosing_leaves_the_network_untouched(assert_same, make_training):
    run = make_training("gss", network="resnet")
    run.stop_in_task(0)
    before = copy.deepcopy(run.method.model.state_dict())
    run.method.end_task(run._tasks[0].train)
    assert_same(run.method.model.state_dict(), before)
    assert all(module.training for module in run.method.model.modules())


def test_gss_trains_as_er_does_with_the_same_memory(assert_same, make_training):
    """In the first task nothing but storage differs."""
    one, other = (make_training(name) for name in ("er", "gss"))
    for run in (one, other):
        run.run_tasks(1)
    assert_same(one.method.model.state_dict(), other.method.model.state_dict())
    assert len(one.method.memory) == len(other.method.memory) == 6
