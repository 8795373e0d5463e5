"""DER (expandable): what each task and stage trains, both losses, and the balanced samples."""

import copy
import math

import pytest
import torch
from torch import nn

from gradmix.errors import InputError
from gradmix.models import MLP
from gradmix.training.loop import StepDone


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


@pytest.fixture
def make(benchmark, make_training):
    return lambda *args, **given: make_training(
        "der-expandable", *args, benchmark=benchmark, **given
    )


def changes_by_stage(run):
    """Return the names of the tensors that each stage of each task changes."""
    method, begin, found = run.method, run.method.begin_stage, []

    def begin_stage(stage):
        begin(stage)
        found.append((stage.name, copy.deepcopy(method.model.state_dict()), {}))

    method.begin_stage = begin_stage
    for event in run.events():
        if isinstance(event, StepDone):
            found[-1][2].update(copy.deepcopy(method.model.state_dict()))
    return [
        (stage, {name for name in after if not torch.equal(before[name], after[name])}, set(after))
        for stage, before, after in found
    ]


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_a_task_trains_its_own_network_and_then_the_classifier_alone(network, make):
    found = changes_by_stage(make(network=network))
    assert [stage for stage, _, _ in found] == ["train", *["train", "classifier"] * 2]
    for number, (stage, changed, names) in enumerate(found):
        task = (number + 1) // 2
        prefixes = ("head.",)
        if stage == "train":
            prefixes = (f"specials.{task}.", "head.", *(("auxiliary.",) if task else ()))
        assert changed == {name for name in names if name.startswith(prefixes)}
        assert sum(name.startswith("specials.") for name in names) % (task + 1) == 0


def test_a_new_network_is_a_copy_of_the_last_with_a_new_classifier(assert_same, make):
    run = make()
    run.run_tasks(2)
    net = run.method.model
    before = copy.deepcopy(net)
    run.method.grow(6)
    assert_same(net.specials[2].state_dict(), before.specials[1].state_dict())
    assert_same(net.specials[0].state_dict(), before.specials[0].state_dict())
    assert net.head.weight.shape == (6, 36)
    assert not torch.isclose(net.head.weight[:4, :24], before.head.weight).any(dim=1).all()
    assert net.auxiliary.weight.shape == (3, 12)  # two new classes, and all old as one


def test_the_loss_by_hand(make, assert_auxiliary_loss):
    assert_auxiliary_loss(make(exemplars=3, options={"auxiliary": 0.5}))


def test_the_classifier_s_loss_by_hand(make, one_step):
    """Temperature 2: the mean loss of halved logits; no network gets a gradient."""
    run = make(exemplars=3, options={"temperature": 2.0})
    run.stop_in_task(1, stage="classifier")
    method, head = run.method, run.method.head
    z = [0.3, -0.2, 0.9, 0.1]
    nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(torch.tensor(z))
    method.model.zero_grad()
    places = torch.tensor([0, 4, 6, 9])  # three of each class, one after another
    assert method.pool.y[method.balanced[places]].tolist() == [0, 1, 2, 3]
    loss = one_step(method, places)
    halved = [value / 2 for value in z]
    expected = math.log(sum(map(math.exp, halved))) - sum(halved) / 4
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert {n for n, p in method.model.named_parameters() if p.grad is not None} == {
        "head.weight",
        "head.bias",
    }


def test_the_classifier_sees_equal_numbers_of_all_classes_in_evaluation_mode(make):
    run = make("gradmix+", "resnet", exemplars=5)
    for event in run.events():
        method = run.method
        if isinstance(event, StepDone) and method.stage.name == "classifier":
            counts = method.pool.y[method.balanced].bincount()
            assert counts.tolist() == [5] * (2 * event.task + 2)
            assert len(method.balanced.unique()) == len(method.balanced)
            assert not any(module.training for module in method.model.modules())
            assert method.plan.draws is None
        elif isinstance(event, StepDone):
            *old, newest = method.model.specials
            assert not any(module.training for part in old for module in part.modules())
            assert all(module.training for module in newest.modules())


def test_predictions_use_undivided_logits(make):
    method = make(options={"temperature": 100.0}).method
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(method.predict(x), method.model(x))


def test_without_the_second_stage(make):
    found = changes_by_stage(make(options={"classifier": 0.0}))
    assert [stage for stage, _, _ in found] == ["train"] * 3


@pytest.mark.parametrize(("rows", "message"), [(None, "does not fit"), ([99], "outside the pool")])
def test_a_saved_balanced_set_must_fit(rows, message, make):
    run, other = make(), make()
    run.stop_in_task(1, stage="classifier")
    state = run.state_dict()
    state["method"]["balanced"] = None if rows is None else torch.tensor(rows)
    with pytest.raises(InputError, match=message):
        other.load_state_dict(state)


def test_a_head_without_bias_stays_without(assert_same, benchmark, make):
    def network(outputs):
        net = MLP(64, outputs, (16, 12))
        net.head = nn.Linear(12, outputs, bias=False)
        return net

    run, other = (make(network=network) for _ in range(2))
    run.stop_in_task(2)
    assert run.method.head.bias is None
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    run.finish()
    other.finish()
    assert_same(run.state_dict(), other.state_dict())
