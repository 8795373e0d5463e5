"""iCaRL: herded exemplars, nearest means, and old outputs that are to stay."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.criterion import embed
from gradmix.models import adapt
from gradmix.randomness import RandomStreams
from gradmix.training.loop import StepDone, TaskDone
from gradmix.types import Samples


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


def only_a_head(outputs):
    """So that a sample is its own embedding."""
    return adapt(nn.Linear(2, outputs))


@pytest.fixture(scope="module")
def with_exemplars(make_training):
    def call(x, y):
        method = make_training("icarl", network=only_a_head).method
        method.normalise = lambda stored: stored
        method.memory.add(Samples(torch.tensor(x), torch.tensor(y)), torch.arange(float(len(y))))
        return method

    return call


def test_nearest_means_by_hand(with_exemplars):
    """Class 0 points to 45°, class 1 to 180°; what points to 0° is 2 − √2 and 4 away, squared."""
    method = with_exemplars([[2.0, 0.0], [0.0, 0.5], [-3.0, 0.0]], [0, 0, 1])
    scores = method.predict(torch.tensor([[5.0, 0.0], [-1.0, 1.0]]))
    assert scores[0, :2].tolist() == pytest.approx([-(2 - math.sqrt(2)), -4.0], abs=1e-6)
    assert scores[1, :2].tolist() == pytest.approx([-2.0, -(2 - math.sqrt(2))], abs=1e-6)
    assert scores[:, 2:].tolist() == [[-math.inf] * 4] * 2  # classes not seen yet
    assert scores.argmax(dim=1).tolist() == [0, 1]


def test_lengths_of_embeddings_do_not_matter(with_exemplars):
    """The mean of (9, 0) and (0, 1) points to 45° all the same."""
    method = with_exemplars([[9.0, 0.0], [0.0, 1.0], [0.0, -7.0]], [0, 0, 1])
    classes, means = method.class_means()
    assert classes.tolist() == [0, 1]
    expected = torch.tensor([[math.sqrt(0.5), math.sqrt(0.5)], [0.0, -1.0]])
    torch.testing.assert_close(means, expected)


def test_before_the_first_task_the_head_speaks(benchmark, make_training):
    method = make_training("icarl", benchmark=benchmark).method
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(method.predict(x), method.model(x))


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_exemplars_are_herded(network, benchmark, make_training):
    run = make_training("icarl", network=network, benchmark=benchmark, exemplars=5)
    run.run_tasks(1)
    method, train = run.method, benchmark.tasks[0].train
    features = embed(method.model, method.head, method.normalise(train.x), train.y).embeddings
    rows = F.normalize(features, dim=1)
    generator = torch.Generator().manual_seed(0)
    for label in (0, 1):
        own, x = rows[train.y == label], train.x[train.y == label]
        kept = method.memory.x[method.memory.y == label]
        chosen = [int((x == image).flatten(1).all(dim=1).nonzero()) for image in kept]
        for turn, index in enumerate(chosen):  # in memory they stand in the order of choice
            means = {
                i: float((own[[*chosen[:turn], i]].mean(dim=0) - own.mean(dim=0)).norm())
                for i in range(16)
                if i not in chosen[:turn]
            }
            assert means[index] <= min(means.values()) + 1e-6
        drawn = [torch.randperm(16, generator=generator)[:5] for _ in range(200)]
        random = [float((own[some].mean(dim=0) - own.mean(dim=0)).norm()) for some in drawn]
        herded = float((own[chosen].mean(dim=0) - own.mean(dim=0)).norm())
        assert herded < sorted(random)[20]  # than 90 of 100


def test_when_the_quota_shrinks_the_first_chosen_stay(benchmark, make_training):
    run = make_training("icarl", benchmark=benchmark, memory={"total": 12})
    run.run_tasks(1)
    memory = run.method.memory
    first = [memory.x[memory.y == label] for label in (0, 1)]
    assert [len(x) for x in first] == [6, 6]
    for tasks, number in ((2, 3), (3, 2)):
        run.run_tasks(tasks)
        for label in (0, 1):
            assert torch.equal(memory.x[memory.y == label], first[label][:number])


@pytest.mark.parametrize("head", ["fixed", "growing"])
@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_old_targets_are_the_old_network_s_sigmoids(
    network, head, benchmark, make_training, one_step
):
    run = make_training("icarl", network=network, benchmark=benchmark, head=head)
    run.run_tasks(1)
    last = copy.deepcopy(run.method.model).eval()
    run.stop_in_task(1, steps=2)
    method, new = run.method, torch.tensor([0, 5, 13, 20])
    peek = RandomStreams(0)
    peek.load_state_dict(method.streams.state_dict())
    replay = torch.randperm(6, generator=peek.device("replay"))[:6] + method.pool.num_new
    index = torch.cat([new, replay])
    x, y = method.pool.inputs(index), method.pool.y[index]
    model = copy.deepcopy(method.model)
    with torch.no_grad():
        p, old = model(x).sigmoid().double(), last(x).sigmoid().double()
    outputs = 4 if head == "growing" else 6
    assert p.shape[1] == outputs
    total = 0.0
    for row in range(10):
        for k in range(outputs):
            target = float(old[row, k]) if k < 2 else float(y[row] == k)
            q = float(p[row, k])
            total -= target * math.log(q) + (1 - target) * math.log(1 - q)
    assert one_step(method, new).item() == pytest.approx(total / (10 * outputs), rel=1e-4)


def test_in_the_first_task_all_targets_are_labels(benchmark, make_training, one_step):
    run = make_training("icarl", benchmark=benchmark)
    run.stop_in_task(0)
    method, index = run.method, torch.tensor([0, 30])
    outputs = method.model(method.pool.inputs(index))
    targets = torch.eye(6)[[0, 1]]
    expected = F.binary_cross_entropy(outputs.sigmoid(), targets)
    torch.testing.assert_close(one_step(method, index), expected)


@pytest.mark.parametrize("mix", ["none", "mixup", "gradmix+"])
def test_the_old_network_is_the_last_task_s_and_rests(mix, assert_same, benchmark, make_training):
    run = make_training("icarl", mix, "resnet", benchmark=benchmark)
    last = None
    for event in run.events():
        old = run.method.old
        if isinstance(event, StepDone):
            assert (old is None) == (event.task == 0)
            if old is not None:
                assert_same(old.state_dict(), last)
                assert not any(module.training for module in old.modules())
                assert not any(parameter.requires_grad for parameter in old.parameters())
                assert run.method.old_classes == 2 * event.task
        if isinstance(event, TaskDone):
            last = copy.deepcopy(run.method.model.state_dict())


def test_means_follow_the_network_and_the_head_is_reported_beside_them(benchmark, make_training):
    run = make_training("icarl", benchmark=benchmark, epochs=3)
    done = [event for event in run.finish() if isinstance(event, TaskDone)]
    assert [list(event.correct) for event in done] == [["main", "head"]] * 3
    method = run.method
    x = method.normalise(torch.cat([task.test.x for task in benchmark.tasks]))
    y = torch.cat([task.test.y for task in benchmark.tasks])
    right = y[method.model(x).argmax(dim=1) == y].bincount(minlength=6)
    assert torch.equal(done[2].correct["head"].sum(dim=0), right)
    # By the means of all six classes, from the features that the network has now.
    memory = method.memory
    features = F.normalize(method.model.features(method.normalise(memory.x)), dim=1)
    means = torch.stack([features[memory.y == label].mean(dim=0) for label in range(6)])
    own = F.normalize(method.model.features(x), dim=1)
    nearest = torch.cdist(own, F.normalize(means, dim=1)).argmin(dim=1)
    assert torch.equal(done[2].correct["main"].sum(dim=0), y[nearest == y].bincount(minlength=6))


def test_means_are_taken_anew_after_every_step_and_every_task(benchmark, make_training):
    run = make_training("icarl", benchmark=benchmark)
    run.stop_in_task(1)
    method, x = run.method, torch.rand(4, 1, 8, 8)
    one = method.predict(x)
    assert one[:, 2:].isinf().all()
    run.stop_in_task(1)  # one more
    other = method.predict(x)
    fresh = make_training("icarl", benchmark=benchmark)
    fresh.load_state_dict(copy.deepcopy(run.state_dict()))
    assert torch.equal(other, fresh.method.predict(x))
    assert not torch.equal(one, other)
    method.end_task(run._tasks[1].train)
    assert method.predict(x)[:, :4].isfinite().all()
