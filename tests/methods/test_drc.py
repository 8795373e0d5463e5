"""DRC: two branches and their merging, what each stage trains, and both losses by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.criterion import embed
from gradmix.methods.drc import TokenNorm, label_shares
from gradmix.mixing.plan import Plan
from gradmix.training.loop import StepDone


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


@pytest.fixture
def make(benchmark, make_training):
    return lambda *args, **given: make_training("drc", *args, benchmark=benchmark, **given)


def constant_head(network):
    """Let a network answer the same to everything."""
    nn.init.zeros_(network.head.weight)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_the_branches_are_batch_norms_of_the_last_feature_map(network, make):
    run = make(network=network)
    run.run_tasks(2)
    net, x = run.method.model, torch.randn(6, 1, 8, 8)
    net.train()
    hidden = net.network.shared(x)
    if network == "mlp":
        features = net.network.special(hidden)[:, :, None, None]
    else:
        features = net.network.special[0](hidden)
    sums = torch.zeros(6, net.head.in_features)
    for norm, ours in zip((net.norm_old, net.norm_new), net.embeddings(x, None, None), strict=True):
        theirs = F.batch_norm(features, None, None, norm.weight, norm.bias, training=True)
        torch.testing.assert_close(ours, theirs.mean(dim=(2, 3)), atol=1e-5, rtol=1e-4)
        sums += ours
    assert net.head.bias is None
    torch.testing.assert_close(net(x), sums @ net.head.weight.T, atol=1e-5, rtol=1e-4)


def test_the_criterion_for_many_classes_takes_adjusted_logits_without_a_bias(make):
    run = make("gradmix+", criterion="clusters")
    run.finish()
    assert run.method.head.bias is None
    assert run.method.selector.negative_rate is not None


def test_the_criterion_sees_the_sum_of_both_embeddings(make):
    run = make()
    run.run_tasks(2)
    method, x = run.method, torch.randn(6, 1, 8, 8)
    seen = embed(method.model, method.head, x, torch.zeros(6, dtype=torch.int64))
    old, new = method.model.eval().embeddings(x, None, None)
    torch.testing.assert_close(seen.embeddings, old + new)


def test_merging_by_hand(make):
    """First the old branch becomes the new one; later, scales and shifts are averaged."""
    net = make().method.model
    with torch.no_grad():
        net.norm_new.weight.fill_(3.0)
        net.norm_new.bias.fill_(-1.0)
        net.norm_new.running_mean.fill_(7.0)
    net.merge()
    assert net.norm_old.weight.unique().tolist() == [3.0]
    assert net.norm_old.running_mean.unique().tolist() == [7.0]
    with torch.no_grad():
        net.norm_new.weight.fill_(5.0)
        net.norm_new.bias.fill_(0.0)
        net.norm_new.running_mean.fill_(9.0)
    net.merge()
    assert net.norm_old.weight.unique().tolist() == [4.0]
    assert net.norm_old.bias.unique().tolist() == [-0.5]
    assert net.norm_old.running_mean.unique().tolist() == [7.0]


def test_the_first_task_has_one_branch(make):
    run = make()
    run.run_tasks(1)
    net, x = run.method.model, torch.randn(6, 1, 8, 8)
    net.eval()
    tokens = net.network.features(x)[:, None]
    torch.testing.assert_close(net(x), net.head(net.norm_new(tokens)[:, 0]))


def test_one_position_is_normalised_with_the_running_statistics():
    norm = TokenNorm(3)
    norm.running_mean.fill_(1.0)
    out = norm(torch.full((1, 1, 3), 5.0))
    torch.testing.assert_close(out, torch.full((1, 1, 3), 4.0), atol=1e-4, rtol=0)
    assert norm.running_mean.tolist() == [1.0] * 3


def test_stages_and_what_they_train_on(make):
    run = make("mixup", epochs=5)
    seen = []
    for event in run.events():
        method = run.method
        if isinstance(event, StepDone):
            rows, num_new = method.plan.index, method.pool.num_new
            replays = bool((rows >= num_new).any())
            assert replays == (method.stage.name == "fusion")
            assert (method.plan.draws is None) == (method.stage.name == "adaptation")
            assert (method.adapted is not None) == (method.stage.name == "fusion")
            seen.append((event.task, method.stage.name, method.stage.epochs))
    assert sorted(set(seen)) == [
        (0, "train", 5),
        (1, "adaptation", 2),
        (1, "fusion", 3),
        (2, "adaptation", 2),
        (2, "fusion", 3),
    ]
    assert run.method.old is None
    assert run.method.adapted is None


def test_the_old_branch_and_the_teachers_are_never_trained(make):
    run = make()
    run.stop_in_task(1, stage="adaptation")
    method = run.method
    norm, old = (copy.deepcopy(part.state_dict()) for part in (method.model.norm_old, method.old))
    run.stop_in_task(1, stage="fusion")
    adapted = copy.deepcopy(method.adapted.state_dict())
    for event in run.events():
        if not isinstance(event, StepDone) or event.task > 1:
            break
        for name in ("weight", "bias"):
            assert torch.equal(method.model.norm_old.state_dict()[name], norm[name])
        assert all(torch.equal(method.old.state_dict()[name], old[name]) for name in old)
        ours = method.adapted.state_dict()
        assert all(torch.equal(ours[name], adapted[name]) for name in adapted)


def test_the_loss_of_adaptation_knows_only_new_classes(make, one_step):
    """Old classes could have any outputs; two new classes with equal outputs cost ln 2."""
    run = make()
    run.stop_in_task(1, stage="adaptation")
    method = run.method
    nn.init.zeros_(method.head.weight[2:])
    nn.init.constant_(method.head.weight[:2], 9.0)
    loss = one_step(method, torch.tensor([0, 5, 13, 20]))
    assert loss.item() == pytest.approx(math.log(2))


def test_the_loss_of_fusion_by_hand(make, one_step):
    """All networks answer 0: only the shares of the classes speak, 2 : 2 : 3 : 3 of 10."""
    weights = {"branches": 0.25, "distill_old": 4.0, "distill_new": 0.5}
    run = make(exemplars=3, options=weights)
    run.stop_in_task(1, stage="fusion")
    method = run.method
    for network in (method.model, method.old, method.adapted):
        constant_head(network)
    method.adjustment = 2 * torch.tensor([0.2, 0.2, 0.3, 0.3]).log()
    method.draw_replay = lambda: torch.tensor([24, 28])
    assert method.pool.y[[0, 23, 24, 28]].tolist() == [2, 3, 0, 1]
    loss = one_step(method, torch.tensor([0, 23]))
    total = 2 * 0.2**2 + 2 * 0.3**2  # squares: the power is 2
    joint = -(2 * math.log(0.2**2 / total) + 2 * math.log(0.3**2 / total)) / 4
    single = math.log(4)  # of every row and branch
    kept = math.log(2)  # two old, or two new classes, with equal outputs
    expected = 0.25 * single + 0.75 * joint + 4.0 * kept + 0.5 * kept
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_single_branches_by_hand(make):
    """Rows of class 0 (old), 3 (new) and half of each: weights 1, 0, 0.5 of the old branch."""
    run = make()
    run.stop_in_task(1, stage="fusion")
    y = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1.0], [0.5, 0, 0, 0.5]])
    old, new = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))

    def loss(logits, row):
        return -float((y[row] * logits[row].log_softmax(0)).sum())

    expected = loss(old, 0) + 0.5 * loss(old, 2) + sum(loss(new, row) for row in range(3))
    ours = run.method.branch_loss(old, new, y)
    assert ours.item() == pytest.approx(expected / 4.5, rel=1e-5)


def test_label_shares_by_hand():
    """Every class has one label more than the batches give it."""
    y, partners = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1, 1], [2, 0]])
    plain = label_shares(Plan(y), 4) * 8
    assert plain.tolist() == pytest.approx([3, 2, 2, 1])
    shares = torch.tensor([[0.75, 0.5], [0.25, 0.5]])
    mixed = label_shares(Plan(y, partner_y=partners, shares=shares), 4) * 8
    assert mixed.tolist() == pytest.approx([2.5, 2.25, 2.25, 1])


def test_fusion_adjusts_logits_by_the_labels_of_its_batches(make):
    run = make("gradmix+", options={"prior": 2.0})
    run.stop_in_task(1, stage="adaptation")
    assert run.method.adjustment is None
    run.stop_in_task(1, stage="fusion")
    expected = 2 * label_shares(run.method.plan, 4).log()
    torch.testing.assert_close(run.method.adjustment, expected)
    run.run_tasks(2)
    assert run.method.adjustment is None


def test_the_setting_takes_the_place_of_the_option(make):
    run = make(logit_adjustment=0.5)
    run.stop_in_task(1, stage="fusion")
    expected = 0.5 * label_shares(run.method.plan, 4).log()
    torch.testing.assert_close(run.method.adjustment, expected)


def test_a_task_of_known_classes_has_no_adaptation(blobs, make_training):
    method = make_training("drc", benchmark=blobs()).method
    method.grow(2)
    method.seen = 2
    method.grow(2)
    assert [stage.name for stage in method.stages()] == ["fusion"]
