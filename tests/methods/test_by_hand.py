"""Steps whose gradient is written out: the same training as by autograd, and only where it is."""

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import Precision
from method_cases import MIXES, assert_same, assert_same_events, finish, make_training, run_tasks
from torch.nn import functional as F

from gradmix.methods import ER
from gradmix.methods.sgd import SGD
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


class MixedInside(ER):
    """Hidden states mixed by a rule of one's own."""

    def mixed_batch(self, step):
        return super().mixed_batch(step)._replace(mix=lambda h: h.flip(0), at=1)


class Accumulating(SGD):
    """Gradients of all steps together."""

    def zero_grad(self, set_to_none=True):
        """Not at all."""


class Accumulated(ER):
    """With an optimizer of one's own."""

    def new_optimizer(self):
        return Accumulating(self.parameters(), 0.05, 0.9, 0.0)


@pytest.mark.parametrize("kind", [Doubled, Smoothed, MixedInside, Accumulated])
def test_what_one_defines_oneself_is_what_is_trained_with(kind):
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


def test_outputs_that_are_replaced_on_an_object_are_what_is_trained_on():
    method = make_training("er").method
    method.logits = lambda mixed: method.model(mixed.x)
    assert method.layers_by_hand() is None


class Plugin(Precision):
    """With a say in every gradient."""

    calls = 0

    def backward(self, *args, **kwargs):
        self.calls += 1
        super().backward(*args, **kwargs)


def test_a_precision_of_ones_own_takes_the_gradients():
    training, plugin = make_training("er"), Plugin()
    training.fabric = Fabric(accelerator="cpu", devices=1, plugins=plugin)
    steps = [event for event in finish(training) if isinstance(event, StepDone)]
    assert plugin.calls == len(steps)


def test_gradients_from_elsewhere_are_forgotten():
    plain, other = make_training("er"), make_training("er")
    extra = torch.nn.Parameter(torch.zeros(16))
    own = other.method.parameters
    other.method.parameters = lambda: [*own(), extra]
    steps = other.events()
    next(steps)
    extra.grad = torch.ones(16)
    list(steps), finish(plain)
    assert torch.equal(extra, torch.zeros(16))
    assert_same(other.method.model.state_dict(), plain.method.model.state_dict())


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
