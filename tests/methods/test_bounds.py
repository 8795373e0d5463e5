"""Fine-tuning and joint training: what they train on, and that they bound the others."""

import copy

import pytest
import torch
from torch.nn import functional as F

from gradmix.methods import METHODS
from gradmix.training.loop import StepDone, TaskDone


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((24, 24), (24, 24), (24, 24)), noise=110, tests=20, seed=4)


SETTINGS = {"dytox": {"optimizer": "adamw", "lr": 0.003}}  # attention hardly learns with SGD
REPLAYING = [name for name, info in METHODS.items() if info.build.replays and name != "a-gem"]


@pytest.fixture(scope="module")
def learned(benchmark, make_training):
    def call(method, mix="none", **given):
        run = make_training(
            method, mix, benchmark=benchmark, **{"epochs": 25, "exemplars": 4, "lr": 0.02, **given}
        )
        run.finish()
        return run.accuracies()

    return call


@pytest.fixture(scope="module")
def bounds(learned):
    return {name: learned(name) for name in ("finetune", "joint")}


def test_the_bounds_are_far_apart(bounds):
    lower, upper = bounds["finetune"], bounds["joint"]
    assert lower[:2] == [0.0, 0.0]  # all is forgotten
    assert lower[2] > 0.9
    assert min(upper) > 0.8


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "dytox")) for name in REPLAYING],
)
def test_the_others_lie_between_the_bounds(method, bounds, learned):
    ours = sum(learned(method, **SETTINGS.get(method, {})))
    assert sum(bounds["finetune"]) + 0.3 < ours <= sum(bounds["joint"]) + 0.1


@pytest.mark.parametrize("head", ["fixed", "growing"])
@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_joint_starts_every_task_from_the_initial_weights(
    network, head, assert_same, make_training, weights_at_starts
):
    run = make_training("joint", network=network, head=head)
    initial = copy.deepcopy(run.method.model.state_dict())
    starts = weights_at_starts(run)
    assert len(starts) == 3
    for task, state in enumerate(starts):
        rows = 2 if head == "growing" else 6
        assert len(state["head.weight"]) == (2 * (task + 1) if head == "growing" else 6)
        for name in ("head.weight", "head.bias"):
            state[name] = state[name][:rows]
        assert_same(state, initial)
    final = run.method.model.state_dict()
    assert all(not torch.equal(final[name][:2], initial[name][:2]) for name in ["head.weight"])


def test_joint_trains_on_everything_seen(blobs, make_training):
    run = make_training("joint", benchmark=blobs(((8, 8), (8, 8), (8, 8))))
    rows = {}
    for event in run.events():
        if isinstance(event, StepDone):
            rows.setdefault(event.task, run.method.new.flatten())
            assert event.steps == 2 * (event.task + 1)
        if isinstance(event, TaskDone):
            assert (event.memory_size, event.replay_batch) == (0, 0)
            pool = run.method.pool
            assert pool.y.bincount().tolist() == [8] * (2 * event.task + 2)
            assert rows[event.task].sort().values.tolist() == list(range(len(pool)))
    past = run.method.stored_samples()
    for task in run.benchmark.tasks:
        of_task = (past.y // 2) == task.number - 1
        assert torch.equal(past.x[of_task], task.train.x)


@pytest.mark.parametrize(("method", "mix"), [("finetune", "none"), ("joint", "none")])
def test_the_step_is_cross_entropy_on_the_batch(method, mix, make_training, one_step):
    run = make_training(method, mix)
    run.run_tasks(1)
    events = run.events()
    next(events)
    index = torch.arange(7) + 3
    pool = run.method.pool
    expected = F.cross_entropy(run.method.model(pool.inputs(index)), pool.y[index])
    torch.testing.assert_close(one_step(run.method, index), expected)


def test_fine_tuning_keeps_nothing(make_training):
    run = make_training("finetune", "balanced-mixup")
    for event in run.events():
        assert len(run.method.memory) == 0
        assert len(run.method.pool) == run.method.pool.num_new
        if isinstance(event, TaskDone):
            own = event.pair_counts[2 * event.task : 2 * event.task + 2]
            assert own[:, 2 * event.task : 2 * event.task + 2].sum() == event.pair_counts.sum() > 0
