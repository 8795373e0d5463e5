"""FOSTER: an old branch at rest, losses by hand, and a student that learns from both branches."""

import copy
import math

import pytest
import torch
from torch import nn

from gradmix.methods.foster import TwoBranches
from gradmix.training.loop import EpochDone, StepDone, TaskDone
from gradmix.types import MixedBatch


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


def cross_entropy(logits, label):
    return math.log(sum(map(math.exp, logits))) - logits[label]


def softmax(logits):
    total = sum(map(math.exp, logits))
    return [math.exp(z) / total for z in logits]


def constant(head, outputs):
    """Let a head answer `outputs` to everything."""
    nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(torch.tensor(outputs))


@pytest.fixture(scope="module")
def in_second_task(blobs, make_training):
    """Two old classes with 2 exemplars, two new ones with 4 samples."""

    def call(stage, **given):
        run = make_training("foster", benchmark=blobs(((8, 8), (4, 4))), exemplars=2, **given)
        run.stop_in_task(1, stage=stage)
        return run.method

    return call


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_the_old_branch_is_the_last_network_and_rests(
    network, assert_same, benchmark, make_training
):
    run = make_training("foster", network=network, benchmark=benchmark, epochs=2)
    last = None
    for event in run.events():
        net = run.method.model
        if isinstance(event, StepDone) and event.task > 0:
            assert_same(net.old.state_dict(), last)
            assert not any(module.training for module in net.old.modules())
            assert not any(parameter.requires_grad for parameter in net.old.parameters())
            boosting = run.method.stage.name == "boosting"
            assert net.new.training == net.head.training == boosting
        if isinstance(event, TaskDone):
            now = net if event.task == 0 else run.method.student
            last = copy.deepcopy(now.state_dict())
    assert isinstance(net, TwoBranches)


def test_stages_and_their_lengths(benchmark, make_training):
    run = make_training("foster", benchmark=benchmark, epochs=4, options={"compression": 0.5})
    done = [
        (event.task, event.stage, event.epoch, event.epochs)
        for event in run.finish()
        if isinstance(event, EpochDone)
    ]
    first = [(0, "train", epoch, 4) for epoch in (1, 2, 3, 4)]
    later = [("boosting", epoch, 4) for epoch in (1, 2, 3, 4)]
    later += [("compression", epoch, 2) for epoch in (1, 2)]
    assert done == first + [(task, *stage) for task in (1, 2) for stage in later]


def test_boosting_mixes_and_compression_does_not(benchmark, make_training):
    run = make_training("foster", "gradmix+", benchmark=benchmark)
    run.stop_in_task(1, stage="boosting")
    assert run.method.plan.draws is not None
    counts = run.method.mixer.counts.clone()
    run.stop_in_task(1, stage="compression")
    assert run.method.plan.draws is None
    assert run.method.mixed_batch(0).targets.ndim == 1
    assert run.method.plan.index.shape[1] > run.method.new.shape[1]  # the memory is replayed
    assert int(run.method.mixer.counts.sum()) >= int(counts.sum()) > 0


@pytest.mark.parametrize(("boosting", "compression"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_either_stage_is_mixed_if_it_is_to_be(boosting, compression, benchmark, make_training):
    options = {"mix_boosting": boosting, "mix_compression": compression}
    run = make_training("foster", "mixup", benchmark=benchmark, options=options)
    run.stop_in_task(0, stage="train")
    assert run.method.plan.draws is not None  # the first task has neither stage
    for stage, mixed in (("boosting", boosting), ("compression", compression)):
        run.stop_in_task(1, stage=stage)
        assert (run.method.plan.draws is not None) == mixed
        assert run.method.mixed_batch(0).targets.ndim == 1 + mixed


def test_each_stage_trains_its_own_parameters(assert_same, benchmark, make_training):
    run = make_training("foster", "gradmix+", benchmark=benchmark)
    run.stop_in_task(1, stage="boosting")
    net = run.method.model
    trained = {id(p) for group in run.method.optimizer.param_groups for p in group["params"]}
    names = {name for name, p in net.named_parameters() if id(p) in trained}
    assert names == {
        name for name, _ in net.named_parameters() if name.startswith(("new.", "head."))
    }
    teacher = None
    for event in run.events():
        if isinstance(event, StepDone) and run.method.stage.name == "compression":
            teacher = teacher or copy.deepcopy(run.method.model.state_dict())
            assert_same(run.method.model.state_dict(), teacher)
            assert not any(module.training for module in run.method.model.modules())
            assert all(module.training for module in run.method.student.modules())
        if isinstance(event, TaskDone):
            break
    assert teacher is not None


def test_class_weights_by_hand(in_second_task):
    """β = ½: ½ / (1 − ¼) = 2/3 for 2 samples, ½ / (1 − 1/16) = 8/15 for 4; their mean is 3/5."""
    method = in_second_task("boosting")
    assert method.pool.y.bincount().tolist() == [2, 2, 4, 4]
    assert method.class_weights(0.5).tolist() == pytest.approx([10 / 9, 10 / 9, 8 / 9, 8 / 9])
    assert method.class_weights(0.0).tolist() == pytest.approx([1] * 4)


def test_the_boosting_loss_by_hand(in_second_task):
    """Heads that answer the same to everything leave a sum of three closed forms."""
    method = in_second_task("boosting", options={"beta1": 0.5, "distill": 3.0, "temperature": 4.0})
    net = method.model
    both, own, before = [0.2, -0.4, 1.0, 0.6], [0.5, 0.1, -0.3, 0.0], [1.2, 0.4]
    constant(net.head, both)
    constant(net.new.head, own)
    constant(net.old.head, before)
    x, weights = torch.rand(1, 1, 8, 8), [10 / 9, 10 / 9, 8 / 9, 8 / 9]
    aligned = [z / w for z, w in zip(both, weights, strict=True)]
    soft, logs = softmax([z / 4 for z in before]), softmax([z / 4 for z in both[:2]])
    kept = -sum(p * math.log(q) for p, q in zip(soft, logs, strict=True))
    expected = [cross_entropy(aligned, c) + cross_entropy(own, c) + 3 * kept for c in range(4)]
    for label in (0, 2):
        loss = method.boosting_loss(MixedBatch(x, torch.tensor([label])))
        assert loss.item() == pytest.approx(expected[label], rel=1e-5)
    targets = torch.tensor([[0.25, 0.0, 0.75, 0.0]])  # soft labels are linear in both
    mixed = method.boosting_loss(MixedBatch(x, targets))
    assert mixed.item() == pytest.approx(0.25 * expected[0] + 0.75 * expected[2], rel=1e-5)


def test_the_compression_loss_by_hand(in_second_task):
    """Softened answers of both branches, weighted by class; labels are not looked at."""
    method = in_second_task("compression", options={"beta2": 0.5, "temperature": 2.0})
    both, single = [0.2, -0.4, 1.0, 0.6], [0.7, 0.3, -0.2, 0.4]
    constant(method.model.head, both)
    constant(method.student.head, single)
    answers = softmax([z / 2 for z in both])
    answers = [p * w for p, w in zip(answers, [10 / 9, 10 / 9, 8 / 9, 8 / 9], strict=True)]
    logs = softmax([z / 2 for z in single])
    expected = -sum(p / sum(answers) * math.log(q) for p, q in zip(answers, logs, strict=True))
    for label in (0, 3):
        batch = MixedBatch(torch.rand(1, 1, 8, 8), torch.tensor([label]))
        assert method.compression_loss(batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_compression_brings_the_student_nearer_to_its_teacher(network, benchmark, make_training):
    run = make_training("foster", network=network, benchmark=benchmark, epochs=10)
    method, begin = run.method, run.method.begin_stage
    x = method.normalise(torch.cat([task.test.x for task in benchmark.tasks[:2]]))
    agreements, distances = [], []

    def measure():
        teacher, student = method.predict(x), method.predict_student(x)
        agreements.append(int((teacher.argmax(dim=1) == student.argmax(dim=1)).sum()))
        logs = [z.log_softmax(dim=1) for z in (teacher, student)]
        distances.append(float((logs[0].exp() * (logs[0] - logs[1])).sum(dim=1).mean()))

    def begin_stage(stage):
        begin(stage)
        if stage.name == "compression":
            measure()

    method.begin_stage = begin_stage
    run.run_tasks(2)
    measure()
    assert agreements[1] > agreements[0]
    assert agreements[1] >= 0.8 * len(x)
    assert distances[1] < 0.5 * distances[0]


def test_the_student_starts_as_the_old_network_and_is_the_next_one(benchmark, make_training):
    run = make_training("foster", benchmark=benchmark)
    method, begin = run.method, run.method.begin_stage
    x = torch.rand(5, 1, 8, 8)
    noted = []

    def begin_stage(stage):
        student = method.student
        begin(stage)
        if stage.name == "compression":
            number = method.model.old.head.out_features
            torch.testing.assert_close(
                method.student(x)[:, :number], method.model.old(x), atol=1e-6, rtol=1e-5
            )
            assert method.student.head.out_features == number + 2
        noted.append((stage.name, student))

    method.begin_stage = begin_stage
    run.run_tasks(2)
    student = method.student
    run.finish()
    assert [name for name, _ in noted] == ["train"] + ["boosting", "compression"] * 2
    assert method.model.old is student
    assert student.head.out_features == 4


def test_the_new_branch_starts_as_the_old_and_the_head_takes_its_weights(
    assert_same, benchmark, make_training
):
    run = make_training("foster", benchmark=benchmark)
    run.run_tasks(1)
    first = copy.deepcopy(run.method.model)
    run.method.grow(4)
    net = run.method.model
    for part in (net.old, net.new):
        assert_same(part.shared.state_dict(), first.shared.state_dict())
        assert_same(part.special.state_dict(), first.special.state_dict())
    assert net.head.weight.shape == (4, 24)
    assert torch.equal(net.head.weight[:2, :12], first.head.weight)
    assert torch.equal(net.head.bias[:2], first.head.bias)
    assert net.new.head.weight.shape == (4, 12)


def test_both_predictors_are_reported(benchmark, make_training):
    run = make_training("foster", benchmark=benchmark, epochs=3)
    done = [event for event in run.finish() if isinstance(event, TaskDone)]
    assert [list(event.correct) for event in done] == [["main", "student"]] * 3
    assert torch.equal(done[0].correct["main"], done[0].correct["student"])
    x = run.method.normalise(torch.cat([task.test.x for task in benchmark.tasks]))
    y = torch.cat([task.test.y for task in benchmark.tasks])
    run.method.model.eval()
    run.method.student.eval()
    for name, network in (("main", run.method.model), ("student", run.method.student)):
        right = y[network(x).argmax(dim=1) == y].bincount(minlength=6)
        assert torch.equal(done[2].correct[name].sum(dim=0), right)
