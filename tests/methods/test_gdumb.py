"""GDumb: a new network for every task, trained on exemplars and on nothing else."""

import copy

import pytest
import torch

from gradmix.data import benchmark_from_tasks
from gradmix.errors import InputError
from gradmix.runs.config import config_for
from gradmix.training.loop import StepDone
from gradmix.types import Samples


def with_other_samples(benchmark, kept):
    """The same tasks; training samples that are not among `kept` become black."""
    images = {image.numpy().tobytes() for image in kept}
    tasks = []
    for task in benchmark.tasks:
        x = task.train.x.clone()
        for image in x:
            if image.numpy().tobytes() not in images:
                image.zero_()
        tasks.append((Samples(x, task.train.y), task.test))
    return benchmark_from_tasks("other", tasks, mean=benchmark.mean, std=benchmark.std)


@pytest.mark.parametrize("mix", ["none", "balanced-mixup"])
def test_samples_outside_the_memory_change_nothing(mix, make_training, assert_same):
    run = make_training("gdumb", mix)
    run.finish()
    memory = run.method.memory
    assert memory.y.bincount().tolist() == [3] * 6
    other = make_training("gdumb", mix, benchmark=with_other_samples(run.benchmark, memory.x))
    other.finish()
    assert_same(other.method.state_dict(), run.method.state_dict())


def test_every_task_starts_from_the_initial_weights(make_training, assert_same, weights_at_starts):
    run = make_training("gdumb", options={"passes": 1.0})
    initial = copy.deepcopy(run.method.model.state_dict())
    starts = weights_at_starts(run)
    assert len(starts) == 3
    for start in starts:
        assert_same(start, initial)


def test_passes_over_the_memory(make_training):
    """Of 6, 12 and 18 exemplars in batches of 6: 1, 2 and 3 steps, twice for each epoch."""
    run = make_training("gdumb", epochs=2, batch_size=6, options={"passes": 2.0})
    steps = [event.task for event in run.finish() if isinstance(event, StepDone)]
    assert [steps.count(task) for task in range(3)] == [4, 8, 12]


def test_a_total_budget_is_never_exceeded(make_training):
    run = make_training("gdumb", memory={"total": 7}, options={"passes": 1.0})
    for _ in run.events():
        assert len(run.method.pool) == len(run.method.memory) <= 7
    assert run.method.memory.y.bincount().tolist() == [2, 1, 1, 1, 1, 1]


def test_it_needs_a_memory():
    with pytest.raises(InputError, match="exemplars_per_class is 0, and GDumb"):
        config_for("digits", method="gdumb", mix="none", exemplars_per_class=0)


def test_it_learns_what_the_memory_shows(make_training):
    run = make_training("gdumb", epochs=10, lr=0.02)
    run.finish()
    assert min(run.accuracies()) > 0.8
    assert torch.equal(run.method.pool.y, run.method.memory.y)
