"""MEMO: what each task trains, folded labels, aligned weights, parts that rest."""

import copy
import math

import pytest
import torch
from torch import nn

from gradmix.methods.losses import as_soft, distillation, fold_old_classes
from gradmix.models import MLP
from gradmix.training.loop import StepDone


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


def snapshots(run):
    """The state of the network at the start of every task's training, and at its end."""
    method, begin, end = run.method, run.method.begin_stage, run.method.end_task
    states = []

    def begin_stage(stage):
        begin(stage)
        states.append([copy.deepcopy(method.model.state_dict())])

    def end_task(new):
        states[-1].append(copy.deepcopy(method.model.state_dict()))
        end(new)

    method.begin_stage, method.end_task = begin_stage, end_task
    run.finish()
    return states


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@pytest.mark.parametrize("shared", [1.0, 0.0])
@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_trains_exactly_what_it_should(network, shared, benchmark, make_training):
    """Parameters and BatchNorm statistics: the shared, unless at rest, and the newest only."""
    run = make_training(
        "memo", network=network, benchmark=benchmark, options={"train_shared": shared}
    )
    for task, (before, after) in enumerate(snapshots(run)):
        prefixes = [f"specials.{task}.", "head."]
        prefixes += ["auxiliary."] if task else []
        prefixes += ["shared."] if shared or not task else []
        expected = {name for name in after if name.startswith(tuple(prefixes))}
        assert changed(before, after) == expected
        assert sum(name.startswith("specials.") for name in after) % (task + 1) == 0


def test_the_optimizer_has_exactly_those(benchmark, make_training):
    run = make_training("memo", benchmark=benchmark)
    run.stop_in_task(2)
    trained = {id(p) for group in run.method.optimizer.param_groups for p in group["params"]}
    names = {name for name, p in run.method.model.named_parameters() if id(p) in trained}
    assert names == {
        f"{part}.{name}"
        for part in ("shared.0", "specials.2.0", "head", "auxiliary")
        for name in ("weight", "bias")
    }


@pytest.mark.parametrize("shared", [1.0, 0.0])
def test_parts_at_rest_stay_in_evaluation_mode(shared, benchmark, make_training):
    run = make_training(
        "memo", "gradmix+", "resnet", benchmark=benchmark, options={"train_shared": shared}
    )
    for event in run.events():
        if isinstance(event, StepDone):
            net = run.method.model
            *old, newest = net.specials
            assert len(old) == event.task
            assert not any(module.training for part in old for module in part.modules())
            assert all(module.training for module in newest.modules())
            trains = bool(shared) or event.task == 0
            assert all(module.training == trains for module in net.shared.modules())


def test_a_shared_part_that_the_user_froze_stays_frozen(benchmark, make_training):
    def network(outputs):
        net = MLP(64, outputs, (16, 12))
        net.shared.requires_grad_(False)
        return net

    states = snapshots(make_training("memo", network=network, benchmark=benchmark))
    for part in ("shared.0.weight", "shared.0.bias"):
        assert all(
            torch.equal(state[part], states[0][0][part]) for pair in states for state in pair
        )


def test_a_new_part_is_a_copy_of_the_last_and_the_head_keeps_its_weights(
    assert_same, benchmark, make_training
):
    run = make_training("memo", benchmark=benchmark)
    run.run_tasks(2)
    net = run.method.model
    before = copy.deepcopy(net)
    run.method.grow(6)
    assert_same(net.specials[2].state_dict(), before.specials[1].state_dict())
    assert net.head.weight.shape == (6, 36)
    assert torch.equal(net.head.weight[:4, :24], before.head.weight)
    assert torch.equal(net.head.bias[:4], before.head.bias)
    assert net.auxiliary.weight.shape == (3, 12)  # two new classes, and all old as one


def test_folded_labels_by_hand():
    targets = torch.tensor([[0.2, 0.3, 0.5, 0.0], [0.0, 0.0, 0.25, 0.75]])
    folded = fold_old_classes(targets, 2)
    torch.testing.assert_close(folded, torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]))
    assert as_soft(torch.tensor([2, 0]), 3).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert as_soft(targets, 4) is targets


def test_distillation_by_hand():
    """T = 2: the teacher's odds 1 : e against the student's 1 : 1, which cost ln 2 for both."""
    teacher, student = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    assert distillation(student, teacher).item() == pytest.approx(math.log(2))
    p = math.e / (1 + math.e)
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert distillation(teacher, teacher).item() == pytest.approx(entropy)


def test_the_loss_by_hand(benchmark, make_training, assert_auxiliary_loss):
    options = {"auxiliary": 0.5}
    assert_auxiliary_loss(make_training("memo", benchmark=benchmark, exemplars=3, options=options))


@pytest.mark.parametrize("align", [1.0, 0.0])
def test_alignment_happens_at_the_end_of_every_task_but_the_first(align, benchmark, make_training):
    run = make_training("memo", benchmark=benchmark, options={"align": align})
    method, end = run.method, run.method.end_task
    seen = []

    def end_task(new):
        before = method.head.weight.clone()
        end(new)
        old, task = method.seen - 2, len(seen)
        expected = before.clone()
        if align and task:
            lengths = before.norm(dim=1)
            expected[old:] *= lengths[:old].mean() / lengths[old:].mean()
        torch.testing.assert_close(method.head.weight.detach(), expected)
        seen.append(task)

    method.end_task = end_task
    run.finish()
    assert seen == [0, 1, 2]


def test_a_head_without_bias_can_be_resumed(assert_same, benchmark, make_training):
    def network(outputs):
        net = MLP(64, outputs, (16, 12))
        net.head = nn.Linear(12, outputs, bias=False)
        return net

    run, other = (make_training("memo", network=network, benchmark=benchmark) for _ in range(2))
    run.stop_in_task(2)
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    run.finish()
    other.finish()
    assert_same(run.state_dict(), other.state_dict())
