"""The rule that chooses exemplars, for every method."""

import copy

import pytest
import torch

from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.runs.config import config_for

RULES = ["random", "herding", "kmeans", "kmeans-inputs"]
CHOOSING = [
    name
    for name, info in METHODS.items()
    if info.build.replays and info.build.selection is not None
]
FIXED = [name for name in METHODS if name not in CHOOSING]


def stored(run):
    return run.method.memory.x, run.method.memory.y


def finished(make_training, **settings):
    run = make_training(**settings)
    run.finish()
    return run


@pytest.mark.parametrize("method", CHOOSING)
def test_every_rule_fills_the_memory(method, make_training):
    chosen = {}
    for rule in RULES:
        run = finished(make_training, method=method, selection=rule, lr=0.01)
        assert run.method.memory.y.bincount().tolist() == [3] * 6
        chosen[rule] = run.method.memory.x
    assert not torch.equal(chosen["random"], chosen["kmeans-inputs"])


@pytest.mark.parametrize(("method", "own"), [("er", "random"), ("icarl", "herding")])
def test_without_a_rule_a_method_uses_its_own(method, own, make_training):
    plain, named = (finished(make_training, method=method, selection=rule) for rule in (None, own))
    for one, other in zip(stored(plain), stored(named), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rule", ["kmeans", "kmeans-inputs"])
def test_a_resumed_run_chooses_the_same_exemplars(rule, make_training):
    whole = finished(make_training, selection=rule, mix="gradmix+")
    first = make_training(selection=rule, mix="gradmix+")
    first.run_tasks(1)
    resumed = make_training(selection=rule, mix="gradmix+")
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed.finish()
    for one, other in zip(stored(resumed), stored(whole), strict=True):
        assert torch.equal(one, other)


def test_k_means_of_inputs_chooses_by_the_inputs_alone(make_training):
    """Other weights, the same exemplars; the draws of the memory's stream are the same."""
    one, other = (finished(make_training, selection="kmeans-inputs", lr=lr) for lr in (0.01, 0.1))
    assert torch.equal(one.method.memory.x, other.method.memory.x)


@pytest.mark.parametrize("method", FIXED)
def test_methods_without_a_choice_refuse_a_rule(method, make_training):
    model = "linear" if not METHODS[method].build.trains else "mlp"
    mix = "none" if not METHODS[method].build.trains else "mixup"
    with pytest.raises(InputError, match="exemplar_selection is 'kmeans', but"):
        config_for("mnist", method=method, mix=mix, model=model, exemplar_selection="kmeans")
