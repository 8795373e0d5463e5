"""Online EWC: importances by hand, the penalty by hand, and heads that grow or shrink."""

import copy

import pytest
import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.models import adapt


def linear(outputs):
    return adapt(nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)))


@pytest.fixture
def untrained(make_training, blobs, give_logits):
    """Two classes, a linear network with all outputs 0: p = (½, ½) for every sample."""
    method = make_training("ewc", network=linear, benchmark=blobs(((4, 3),)), lr=1e-9)
    method.stop_in_task(0)
    give_logits(method.method.head, [0.0, 0.0])
    return method.method


def test_importances_by_hand(untrained):
    """The gradient of log p(y|x) is ±½ for a bias and ±½ x for a weight."""
    importance = untrained.task_importance()
    weight, bias = importance.values()
    assert bias.tolist() == pytest.approx([0.25, 0.25])
    x = untrained.pool.inputs(torch.arange(7)).flatten(1)
    torch.testing.assert_close(weight, (0.25 * x.square().mean(0)).expand(2, -1))


def test_the_penalty_by_hand(untrained):
    """λ Σ F (θ − θ*)²: biases 0 beside (1, −2) with importances (3, 5): 3 · 1 + 5 · 4 = 23."""
    (weight, bias) = untrained.trained()
    untrained.importance = {weight: torch.zeros(2, 64), bias: torch.tensor([3.0, 5.0])}
    untrained.anchor = {weight: torch.ones(2, 64), bias: torch.tensor([1.0, -2.0])}
    assert untrained.penalty().item() == pytest.approx(23.0)


def test_importances_of_tasks_add_up_and_old_outputs_only_are_held(make_training):
    run = make_training("ewc", head="growing", options={"decay": 0.5, "strength": 7.0})
    run.run_tasks(1)
    method = run.method
    first = copy.deepcopy(method.importance)
    assert first["head.bias"].shape == (2,)
    run.stop_in_task(1)
    loss = method.train_step(0)
    method.options = method.options.model_copy(update={"strength": 0.0})
    plain = method.train_step(0)
    torch.testing.assert_close(loss, plain + 7.0 * method.penalty())
    method.penalty().backward()
    assert method.head.weight.grad[2:].abs().sum() > 0  # of the cross-entropy, in the last step
    (held,) = torch.autograd.grad(method.penalty(), [method.head.bias])
    assert held[2:].tolist() == [0.0, 0.0]
    own = method.task_importance()  # of the present weights
    method.streams.load_state_dict(make_training().method.streams.state_dict())
    method.end_task(run.benchmark.tasks[1].train)
    expected = own["head.bias"].clone()
    expected[:2] += 0.5 * first["head.bias"]
    torch.testing.assert_close(method.importance["head.bias"], expected)
    assert torch.equal(method.anchor["head.bias"], method.head.bias)


def test_a_great_strength_holds_the_weights(make_training):
    moved = []
    for strength in (0.0, 1e3):
        run = make_training("ewc", options={"strength": strength}, lr=1e-3, momentum=0.0, epochs=5)
        run.run_tasks(1)
        run.stop_in_task(1, steps=10)
        moved.append(run.method.penalty().item())
    assert 0 < moved[1] < 0.5 * moved[0]


def test_only_some_samples_are_used_and_a_class_can_be_forgotten(make_training):
    run = make_training("ewc", options={"samples": 4.0})
    run.run_tasks(2)
    method = run.method
    kept = method.importance["head.weight"]
    method.forget(1)
    assert torch.equal(method.importance["head.weight"], kept[[0, 2, 3, 4, 5]])
    assert method.anchor["head.bias"].shape == (5,)
    run.finish()
    assert method.importance["head.weight"].shape == (6, 12)


def test_a_state_of_another_network_is_refused(make_training):
    run = make_training("ewc")
    run.run_tasks(1)
    state = run.state_dict()
    for change in (
        {"importance": {}},
        {"anchor": {"a": torch.zeros(2)}},
        {"importance": {n: -v - 1 for n, v in state["method"]["importance"].items()}},
        {"anchor": {n: v[..., :1] for n, v in state["method"]["anchor"].items()}},
    ):
        bad = {**state, "method": {**state["method"], **change}}
        with pytest.raises(InputError, match=r"importance|anchor"):
            make_training("ewc").load_state_dict(bad)
