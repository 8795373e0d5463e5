"""Heads that grow, and modules of the user's own behind `adapt`."""

import copy

import pytest
import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.methods import METHODS, find_method
from gradmix.methods.er import ExtendsNetwork
from gradmix.models import adapt, build_model
from gradmix.training.loop import TaskDone

CHANGE_THE_NETWORK = [
    name for name, info in METHODS.items() if issubclass(info.build, ExtendsNetwork)
]
FORGET = ("finetune", "lwf", "ewc", "a-gem")
OTHERS = [
    name for name, info in METHODS.items() if info.build.trains and name not in CHANGE_THE_NETWORK
]


class Own(nn.Module):
    """Nothing of gradmix in it; statistics, and a head with another name."""

    def __init__(self, outputs):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.classify = nn.Linear(4 * 64, outputs)

    def forward(self, x):
        return self.classify(self.norm(self.stem(x)).relu().flatten(1))


@pytest.mark.parametrize(
    ("method", "head"),
    [
        *((method, "growing") for method in OTHERS),
        ("er", "fixed"),
        *(pytest.param(name, "fixed", marks=pytest.mark.slow) for name in OTHERS if name != "er"),
    ],
)
def test_learns_with_a_module_of_the_user_s_own(method, head, blobs, make_training):
    mix = "gradmix+" if find_method(method).replays else "mixup"
    run = make_training(
        method,
        mix,
        lambda outputs: adapt(Own(outputs)),
        benchmark=blobs(((16, 16), (16, 16))),
        head=head,
        epochs=12,
        lr=0.005,
        exemplars=6,
    )
    correct = [event.correct["main"] for event in run.finish() if isinstance(event, TaskDone)][-1]
    assert int(correct.sum()) >= (10 if method in FORGET else 18)  # of 20
    assert run.method.head is run.method.model.module.classify


@pytest.mark.parametrize("method", CHANGE_THE_NETWORK)
def test_methods_that_change_the_network_say_what_they_need(method, make_training):
    name = METHODS[method].build.__name__
    with pytest.raises(InputError, match=rf"Adapted; {name} .*gradmix\.models\.network\.Network"):
        make_training(method, network=lambda outputs: adapt(Own(outputs)))


@pytest.mark.parametrize("network", ["mlp", lambda outputs: adapt(Own(outputs))])
@pytest.mark.parametrize("method", [name for name in OTHERS if name not in ("joint", "gdumb")])
def test_old_logits_are_the_same_just_after_growth(method, network, make_training):
    run = make_training(method, network=network, head="growing")
    x = torch.rand(9, 1, 8, 8)
    for task in (1, 2):
        run.run_tasks(task)
        before = copy.deepcopy(run.method.model).eval()
        run.method.grow(2 * task + 2)
        model = run.method.model
        assert torch.equal(model.head.weight[: 2 * task], before.head.weight)
        assert torch.equal(model.head.bias[: 2 * task], before.head.bias)
        grown = copy.deepcopy(model).eval()(x)
        assert grown.shape == (9, 2 * task + 2)
        torch.testing.assert_close(grown[:, : 2 * task], before(x), atol=1e-6, rtol=1e-5)


def test_a_head_that_is_to_grow_must_start_small(make_training):
    run = make_training("er", network=lambda _: adapt(Own(6)), head="growing")
    with pytest.raises(InputError, match="outputs is 2; this head has 6"):
        run.finish()


@pytest.mark.parametrize("method", ["er", "a-gem", "scr"])
def test_frozen_layers_of_the_user_stay_as_they_are(method, make_training):
    def frozen_stem(outputs):
        own = Own(outputs)
        own.stem.requires_grad_(False)
        return adapt(own)

    run = make_training(method, network=frozen_stem, weight_decay=0.1)
    stem = run.method.model.module.stem
    before = copy.deepcopy(stem.state_dict())
    run.finish()
    trained = {id(parameter) for parameter in run.method.parameters()}
    assert id(run.method.head.weight) in trained
    assert not trained & {id(parameter) for parameter in stem.parameters()}
    torch.testing.assert_close(stem.state_dict(), before, rtol=0, atol=0)


def without_bias(outputs):
    network = build_model("mlp", (1, 8, 8), outputs, generator=torch.Generator().manual_seed(0))
    network.head = nn.Linear(network.embedding_size, outputs, bias=False)
    return network


@pytest.mark.parametrize("method", CHANGE_THE_NETWORK)
def test_a_head_without_bias_resumes(method, make_training, assert_resumes):
    """FOSTER and DyTox used to make a head with a bias, which the saved weights did not fit."""
    assert_resumes(lambda: make_training(method, "gradmix", without_bias, epochs=2))
