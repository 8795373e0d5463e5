"""Steps whose gradient is written out: the same training as by autograd, and only where it is."""

import pytest
import torch
from lightning_fabric import Fabric
from method_cases import MIXES, assert_same, assert_same_events, finish, make_training, run_tasks
from torch.nn import functional as F

from gradmix.methods import ER
from gradmix.training.loop import StepDone

WRITTEN_OUT = ["er", "mir", "gss", "gss-stream", "finetune", "joint"]
OTHERS = ["der", "der++", "icarl", "foster", "memo"]


def left_to_autograd(training, seen=None):
    """The same training with a hook, which the written-out gradient would not call."""
    seen = [] if seen is None else seen
    training.method.model.register_forward_hook(lambda *_: seen.append(1))
    return training


@pytest.mark.parametrize(
    ("method", "mix"),
    [("er", mix) for mix in MIXES]
    + [(method, "none") for method in WRITTEN_OUT[1:]]
    + [(method, "gradmix+") for method in ("mir", "gss", "gss-stream")],
)
def test_it_is_the_same_training(method, mix):
    ours = make_training(method, mix, epochs=2)
    theirs = left_to_autograd(make_training(method, mix, epochs=2))
    assert_same_events(finish(ours), finish(theirs))
    assert_same(ours.state_dict(), theirs.state_dict())


def test_a_growing_head_is_the_same_too():
    ours = make_training("er", "gradmix+", head="growing")
    theirs = left_to_autograd(make_training("er", "gradmix+", head="growing"))
    assert_same_events(finish(ours), finish(theirs))


@pytest.mark.parametrize("method", WRITTEN_OUT)
def test_methods_with_the_plain_loss_write_it_out(method):
    training = make_training(method)
    run_tasks(training, 1)
    assert training.method.layers_by_hand() is not None


@pytest.mark.parametrize("method", OTHERS)
def test_methods_with_another_loss_do_not(method):
    training = make_training(method)
    run_tasks(training, 1)
    assert training.method.layers_by_hand() is None


@pytest.mark.parametrize("mix", MIXES)
def test_mixed_hidden_states_are_left_to_autograd(mix):
    by_hand = make_training("er", mix).method.layers_by_hand()
    assert (by_hand is None) == ("manifold" in mix)


def test_other_networks_are_left_to_autograd():
    assert make_training("er", network="resnet").method.layers_by_hand() is None


def test_hooks_are_called_in_every_step():
    seen = []
    training = left_to_autograd(make_training("er", "gradmix+"), seen)
    for event in training.events():
        if isinstance(event, StepDone):
            assert seen
            seen.clear()


class Doubled(ER):
    """A loss of one's own, on top of ER's."""

    def train_step(self, step):
        return 2 * super().train_step(step)


class Smoothed(ER):
    """Other outputs than the network's."""

    def logits(self, mixed):
        return super().logits(mixed) / 2


@pytest.mark.parametrize("kind", [Doubled, Smoothed])
def test_a_loss_of_ones_own_is_what_is_trained_on(kind):
    plain, own = make_training("er"), make_training("er")
    own.method.__class__ = kind
    assert own.method.layers_by_hand() is None
    finish(plain), finish(own)
    assert not torch.equal(plain.method.head.weight, own.method.head.weight)


def test_a_step_that_is_replaced_on_an_object_is_what_is_trained_on():
    training = make_training("er")
    calls = []

    def train_step(step):
        calls.append(step)
        mixed = training.method.mixed_batch(step)
        return F.cross_entropy(training.method.logits(mixed), mixed.targets)

    training.method.train_step = train_step
    steps = [event for event in finish(training) if isinstance(event, StepDone)]
    assert len(calls) == len(steps)


def test_lower_precision_is_left_to_autocast(monkeypatch):
    training = make_training("er")
    training.fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    seen = []
    linear = F.linear

    def watched(x, weight, bias):
        seen.append(torch.is_autocast_enabled("cpu"))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", watched)
    for event in training.events():
        if isinstance(event, StepDone):
            assert seen
            assert all(seen)
            break
