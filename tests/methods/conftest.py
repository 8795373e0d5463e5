"""For tests of methods: one step by itself, losses by hand, starts of tasks, resuming."""

import copy
import math

import pytest
import torch

from gradmix.training.loop import StepDone


@pytest.fixture(scope="session")
def one_step():
    """Return a function that returns the loss of a step with given new samples, planned now."""

    def loss(method, new):
        method.new = new[None]
        method.plan = method.plan_epoch(method.new)
        return method.train_step(0)

    return loss


@pytest.fixture(scope="session")
def give_logits():
    """Return a function that makes a head return the same logits for every input."""

    @torch.no_grad()
    def give(head, logits):
        head.weight.zero_()
        head.bias.copy_(torch.tensor(logits))

    return give


@pytest.fixture(scope="session")
def assert_auxiliary_loss(one_step, give_logits):
    """Return a function that checks the loss of a training with an auxiliary head of weight 0.5.

    Both heads answer the same to everything: the loss is the classes' mean loss, and half of the
    one in which all old classes are folded into one.
    """

    def check(run):
        run.stop_in_task(1)
        method, net = run.method, run.method.model
        z, a = [0.3, -0.2, 0.9, 0.1], [0.4, -0.6, 0.2]
        give_logits(net.head, z)
        give_logits(net.auxiliary, a)
        method.draw_replay = lambda: torch.tensor([24, 28])  # one of class 0, one of class 1
        assert method.pool.y[[0, 23, 24, 28]].tolist() == [2, 3, 0, 1]
        loss = one_step(method, torch.tensor([0, 23]))
        total = math.log(sum(map(math.exp, z))) - sum(z) / 4
        folded = math.log(sum(map(math.exp, a))) - (2 * a[0] + a[1] + a[2]) / 4
        assert loss.item() == pytest.approx(total + 0.5 * folded, rel=1e-5)

    return check


@pytest.fixture(scope="session")
def weights_at_starts():
    """Return a function that finishes a training, and returns its weights before each stage."""

    def finish(run):
        begin, starts = run.method.begin_stage, []

        def begin_stage(stage):
            begin(stage)
            starts.append(copy.deepcopy(run.method.model.state_dict()))

        run.method.begin_stage = begin_stage
        run.finish()
        return starts

    return finish


@pytest.fixture
def assert_resumes(tmp_path, assert_same, assert_same_events):
    """Return a function that stops a training of two epochs in task 2, and resumes a new one."""

    def check(make):
        whole = make()
        events = whole.events()
        for event in events:
            if isinstance(event, StepDone) and (event.task, event.epoch, event.step) == (1, 1, 1):
                break
        torch.save(whole.state_dict(), tmp_path / "state")
        resumed = make()
        resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        assert_same_events(resumed.finish(), list(events))
        assert_same(resumed.state_dict(), whole.state_dict())

    return check
