"""DyTox: what each stage trains, its losses by hand, its tokens, its tuning."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradmix.methods.dytox import TaskAttention, divergence
from gradmix.training.loop import StepDone

SHARED = {"attention", "backbone"}


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_each_stage_trains_what_it_should(network, benchmark, make_training):
    run = make_training("dytox", "gradmix+", network, benchmark=benchmark, exemplars=6)
    before, trained = None, {}
    for event in run.events():
        if isinstance(event, StepDone):
            net, stage = run.method.model, run.method.stage.name
            after = copy.deepcopy(net.state_dict())
            if event.step == 2:
                trained[event.task, stage] = changed(before, after)
            before = after
    names = set(after)
    own = {
        t: {
            f"tokens.{t}",
            *(n for n in names if n.startswith((f"norms.{t}.", f"head.blocks.{t}."))),
        }
        for t in range(3)
    }
    parts = {part: {n for n in names if n.startswith(part)} for part in (*SHARED, "divergence")}
    first = parts["attention"] | parts["backbone"] | own[0]
    assert trained[0, "train"] == first
    assert trained[1, "train"] == first - own[0] | own[1] | parts["divergence"]
    assert trained[1, "tuning"] == parts["attention"] | own[0] | own[1]
    assert trained[2, "train"] == first - own[0] | own[2] | parts["divergence"]
    assert trained[2, "tuning"] == parts["attention"] | own[0] | own[1] | own[2]


def binary(logits, targets):
    """The mean binary cross-entropy of logits with 0 and 1."""
    terms = [math.log(1 + math.exp(-z if y else z)) for z, y in zip(logits, targets, strict=True)]
    return sum(terms) / len(terms)


def test_the_losses_by_hand(benchmark, make_training, one_step):
    """Heads that answer the same to everything; half of the classes are old."""
    run = make_training("dytox", benchmark=benchmark, exemplars=3, options={"divergence": 0.5})
    run.stop_in_task(1)
    method, net = run.method, run.method.model
    z, d, old = [0.3, -0.2, 0.9, 0.1], [0.4, -0.6, 0.2], [1.0, -1.0, 0.0, 0.0]
    heads = [*net.head.layers, net.divergence[1], *method.old.head.layers]
    for head, outputs in zip(heads, (z[:2], z[2:], d, old[:2], old[2:]), strict=True):
        nn.init.zeros_(head.weight)
        with torch.no_grad():
            head.bias.copy_(torch.tensor(outputs))
    method.draw_replay = lambda: torch.tensor([24])
    assert method.pool.y[[0, 24]].tolist() == [2, 0]
    loss = one_step(method, torch.tensor([0]))
    labels = (binary(z, [0, 0, 1, 0]) + binary(z, [1, 0, 0, 0])) / 2
    folded = (binary(d, [0, 1, 0]) + binary(d, [1, 0, 0])) / 2
    p, q = torch.tensor(old[:2]).softmax(0), torch.tensor(z[:2]).softmax(0)
    distance = float((p * (p / q).log()).sum()) / 2  # over two outputs
    assert loss.item() == pytest.approx(0.5 * labels + 0.5 * distance + 0.5 * folded, rel=1e-5)
    method.stage = method.stages()[1]
    method.plan_epoch = lambda new: method.mixer.plan(torch.tensor([[0, 24]]), None)
    assert one_step(method, torch.tensor([0])).item() == pytest.approx(labels, rel=1e-5)


def test_divergence_by_hand():
    """Odds 3 : 1 against 1 : 1, averaged over two outputs."""
    teacher, student = torch.tensor([[math.log(3), 0.0]]), torch.zeros(1, 2)
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert divergence(student, teacher).item() == pytest.approx(expected)
    assert divergence(teacher, teacher).item() == 0


def test_tuning_draws_classes_in_equal_shares_at_a_low_rate(blobs, make_training):
    """24 exemplars of each of 4 classes, of which two have 200 samples."""
    run = make_training(
        "dytox",
        benchmark=blobs(((30, 30), (200, 200))),
        exemplars=24,
        lr=0.1,
        schedule="cosine",
        options={"tuning": 2.0, "tuning_lr": 0.25},
    )
    run.stop_in_task(1, stage="tuning")
    method = run.method
    assert method.stages()[1].epochs == 2
    assert method.epoch_samples() == 4 * 24
    shares = method.plan.y.flatten().bincount(minlength=4) / method.plan.y.numel()
    assert method.plan.y.shape == (96 // 8, 8 + 6)
    assert bool((shares - 0.25).abs().max() < 0.1)  # not 0.05 and 0.45, as in the pool
    assert method.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_new_classes_leave_the_old_logits_as_they_are(network, benchmark, make_training):
    run = make_training("dytox", network=network, benchmark=benchmark)
    run.run_tasks(2)
    x, net = torch.rand(5, 1, 8, 8), run.method.model.eval()
    before = net(x)
    run.method.grow(6)
    torch.testing.assert_close(net.eval()(x)[:, :4], before)
    assert net.sizes() == [2, 2, 2]


def test_a_task_whose_classes_are_forgotten_disappears(benchmark, make_training):
    run = make_training("dytox", benchmark=benchmark)
    run.run_tasks(2)
    x, method = torch.rand(5, 1, 8, 8), run.method
    before = method.predict(x)
    method.forget(1)
    assert method.model.sizes() == [1, 2]
    method.forget(0)
    assert method.model.sizes() == [2]
    torch.testing.assert_close(method.predict(x), before[:, 2:])
    assert method.model.divergence[1].out_features == 3
    method.forget(1)
    assert method.model.divergence[1].out_features == 2


def test_task_attention_is_that_of_one_token_at_a_time():
    generator = torch.Generator().manual_seed(0)
    block = TaskAttention(4, generator=generator, device=torch.device("cpu"))
    tokens, patches = (
        torch.randn(3, 4, generator=generator),
        torch.randn(2, 5, 4, generator=generator),
    )
    for token, found in zip(tokens, block(list(tokens), patches), strict=True):
        x = torch.cat([token.expand(2, 1, 4), patches], 1)
        seen = block.norm1(x)
        q, k, v = block.query(seen[:, :1]), block.key(seen), block.value(seen)
        heads = [
            (a @ b.mT).softmax(2) @ c  # 4 numbers make 4 heads of 1
            for a, b, c in zip(*(part.split(1, 2) for part in (q, k, v)), strict=True)
        ]
        out = x[:, 0] + block.project(torch.cat(heads, 2))[:, 0]
        out = out + block.narrow(F.gelu(block.widen(block.norm2(out))))
        torch.testing.assert_close(found, out)


def test_the_criterion_is_the_gradient_of_the_blocks(benchmark, make_training):
    """The scores against autograd, for cross-entropy at embedding-level mixes."""
    run = make_training("dytox", "gradmix", benchmark=benchmark, exemplars=2)
    run.stop_in_task(1)
    method, pool = run.method, run.method.pool
    seen = torch.cat([torch.tensor([0, 12]), torch.arange(24, 28)])  # one of each new class
    method.selector._draw_exemplars = lambda: seen
    method.selector._ratios = lambda: [0.3]
    method.selector.refresh(method.model, method.head)
    [table] = method.selector.tables
    net, parameters = method.model.eval(), list(method.head.parameters())
    with torch.no_grad():
        patches = net.backbone.tokens(pool.inputs(seen))
        normed = [norm(e) for norm, e in zip(net.norms, net.embeddings(patches), strict=True)]
    X, y = torch.cat(normed, 1), F.one_hot(pool.y[seen], 4).float()

    def gradient(X, y):
        loss = F.cross_entropy(method.head(X), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    memory = gradient(X[2:], y[2:])
    for i, j in ((0, 1), (1, 0), (0, 0)):  # classes with one exemplar have one pair
        mixed = gradient(0.3 * X[[i]] + 0.7 * X[[j]], 0.3 * y[[i]] + 0.7 * y[[j]])
        expected = float(memory @ mixed)
        assert table.scores[2 + i, 2 + j].item() == pytest.approx(expected, rel=1e-3, abs=1e-6)
