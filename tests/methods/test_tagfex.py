"""TagFex: what each task trains, its losses by hand, its new network, its two views."""

import copy
import math

import pytest
import torch
from torch import nn

from gradmix.methods.losses import contrast
from gradmix.methods.tagfex import MergeAttention
from gradmix.models.vit import attend
from gradmix.training.loop import StepDone

PREFIXES = ("agnostic.", "projector.", "head.")
LATER = ("predictor.", "auxiliary.", "merge.", "merged_head.")


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((16, 16), (12, 12), (12, 12)), noise=60)


@pytest.mark.parametrize("network", ["mlp", "resnet"])
def test_trains_the_newest_network_and_all_that_guides_it(network, benchmark, make_training):
    run = make_training("tagfex", "mixup", network, benchmark=benchmark)
    before = None
    for event in run.events():
        if isinstance(event, StepDone):
            net, task = run.method.model, event.task
            after = copy.deepcopy(net.state_dict())
            assert not any(m.training for part in net.specifics[:-1] for m in part.modules())
            if event.step == 2:
                changed = {name for name in after if not torch.equal(after[name], before[name])}
                prefixes = (*PREFIXES, f"specifics.{task}.", *(LATER if task else ()))
                assert changed == {name for name in after if name.startswith(prefixes)}
            before = after
    assert len(net.specifics) == 3


def test_the_loss_of_the_first_task_by_hand(benchmark, make_training, one_step):
    """One view, whose projections are orthogonal: each row has one other at cosine 1."""
    run = make_training("tagfex", benchmark=benchmark, options={"contrast": 0.5})
    run.stop_in_task(0)
    method, net = run.method, run.method.model
    z = [0.3, -0.2]
    nn.init.zeros_(net.head.weight)
    with torch.no_grad():
        net.head.bias.copy_(torch.tensor(z))
    net.projector.forward = lambda x: torch.eye(2).repeat(2, 1)
    assert method.pool.y[[0, 31]].tolist() == [0, 1]
    loss = one_step(method, torch.tensor([0, 31]))
    cross_entropy = math.log(sum(map(math.exp, z))) - sum(z) / 2
    spread = math.log(math.exp(5) + 2) - 5  # 1 / 0.2 for the other view, 0 for two others
    assert loss.item() == pytest.approx(cross_entropy + 0.5 * spread, rel=1e-5)


@pytest.mark.parametrize("better", [True, False])
def test_the_loss_of_the_second_task_by_hand(better, benchmark, make_training, one_step):
    """Heads that answer the same to everything; the merged one teaches while it is better."""
    options = {"auxiliary": 3.0, "distill": 5.0, "contrast": 7.0, "transfer": 0.5}
    run = make_training("tagfex", benchmark=benchmark, exemplars=3, options=options)
    run.stop_in_task(1)
    method, net = run.method, run.method.model
    z, a = [0.3, -0.2, 0.9, 0.1], [0.4, -0.6, 0.2]
    t = [0.2, 0.3] if better else [-8.0, 8.0]
    for head, outputs in ((net.head, z), (net.auxiliary, a), (net.merged_head, t)):
        nn.init.zeros_(head.weight)
        with torch.no_grad():
            head.bias.copy_(torch.tensor(outputs))
    for projector in (net.projector, net.old_projector):
        projector.forward = lambda x: torch.eye(3).repeat(2, 1)
    method.draw_replay = lambda: torch.tensor([24])
    assert method.pool.y[[0, 1, 24]].tolist() == [2, 2, 0]  # two new rows, one old
    loss = one_step(method, torch.tensor([0, 1]))

    def entropy(logits, *labels):
        total = math.log(sum(map(math.exp, logits)))
        return sum(total - logits[label] for label in labels) / len(labels)

    cross_entropy = entropy(z, 2, 2, 0)
    spread = math.log(math.exp(5) + 4) - 5
    merged = entropy(t, 0, 0)
    p, q = (torch.tensor(part).div(2).softmax(0) for part in (t, z[2:]))
    transfer = float((p * (p / q).log()).sum())
    assert (merged < cross_entropy) == better
    expected = cross_entropy + 3 * entropy(a, 1, 1, 0) + merged
    expected += 0.5 * 7 * spread + 0.5 * 5 * spread + 0.5 * better * transfer
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_contrast_by_hand():
    """Two samples: the queries' cosines with the keys are 1, 0 and −1; own keys do not count."""
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])
    keys = torch.tensor([[0.0, 1.0], [0.0, -1.0], [5.0, 0.0], [0.0, 1.0]])
    first = math.log(math.e + 2) - 1  # 0 · −, 1: other view, 0
    second = math.log(math.e + math.e + 1) - 1  # 1, −, 0, 1: other view
    third = math.log(3) - 0  # 0: other view, 0, −, 0
    fourth = math.log(math.e + math.exp(-1) + 1) + 1  # 1, −1: other view, 0, −
    expected = (first + second + third + fourth) / 4
    assert contrast(queries, keys, 1.0).item() == pytest.approx(expected, rel=1e-5)


def test_a_new_network_is_a_blend_that_old_classes_ignore(benchmark, make_training):
    run = make_training("tagfex", network="resnet", benchmark=benchmark)
    run.run_tasks(1)
    net = run.method.model
    x = torch.rand(5, 1, 8, 8)
    before, old = net.eval()(x), copy.deepcopy(net)
    run.method.grow(4)
    for name, value in net.specifics[1].named_parameters():
        one, other = (
            dict(part.named_parameters())[name] for part in (old.specifics[0], old.agnostic)
        )
        torch.testing.assert_close(value, 0.95 * one + 0.05 * other)
    norms = [m for m in net.specifics[1].modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(bool((m.running_mean == 0).all() and (m.running_var == 1).all()) for m in norms)
    torch.testing.assert_close(net.eval()(x)[:, :2], before)


def test_the_views_differ_in_their_transforms_only(benchmark, make_training):
    def noisy(x, *, generator):
        return x + torch.randint(0, 40, x.shape, generator=generator, dtype=torch.uint8)

    for transforms in ((), (noisy,)):
        run = make_training("tagfex", "mixup", benchmark=benchmark, transforms=transforms)
        run.stop_in_task(0)
        seen, targets = run.method.views(0)
        first, second = seen.general.chunk(2)
        assert torch.equal(first, second) == (not transforms)
        assert torch.equal(*targets.chunk(2))


def test_merged_tokens_attend_to_both_networks_by_hand():
    """Equal keys: the mean over all tokens of both networks, normalised, in equal parts."""
    merge = MergeAttention(2, generator=torch.Generator(), device=torch.device("cpu"))
    with torch.no_grad():
        for key in merge.keys:
            key.weight.zero_()
        for value in merge.values:
            value.weight.copy_(torch.eye(2))
    agnostic = torch.tensor([[[1.0, 3.0], [5.0, 1.0]]])  # normalised: (−1, 1), (1, −1)
    specific = torch.tensor([[[2.0, 0.0], [3.0, 0.0]]])  # twice (1, −1)
    torch.testing.assert_close(
        merge(agnostic, specific), torch.tensor([[0.5, -0.5]]), rtol=1e-4, atol=1e-4
    )


def test_attention_is_that_of_each_head():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 12, generator=generator) for n in (3, 5, 5))
    parts = [
        (q @ k.mT / math.sqrt(3)).softmax(2) @ v  # 12 numbers make 4 heads of 3
        for q, k, v in zip(*(part.split(3, 2) for part in (query, key, value)), strict=True)
    ]
    torch.testing.assert_close(attend(query, key, value), torch.cat(parts, 2))
