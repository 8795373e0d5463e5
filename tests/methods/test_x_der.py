"""X-DER: two softmaxes, margins, and stored logits that are rewritten, by hand."""

import math

import pytest
import torch
from torch import nn

from gradmix.methods.x_der import mean_excess, temper


@pytest.fixture(scope="module")
def benchmark(blobs):
    return blobs(((12, 12), (12, 12), (12, 12)), noise=60)


def entropy(logits, label):
    return math.log(sum(map(math.exp, logits))) - logits[label]


@pytest.mark.parametrize("head", ["fixed", "growing"])
def test_the_loss_by_hand(head, benchmark, make_training, one_step):
    """Outputs that are the same for everything: 2 past, 2 current and, if fixed, 2 future."""
    options = {"alpha": 0.5, "beta": 3.0, "eta": 2.0, "margin": 0.3}
    run = make_training("x-der", benchmark=benchmark, head=head, exemplars=2, options=options)
    run.stop_in_task(1)
    method = run.method
    z = [0.3, -0.2, 0.9, 0.1, 0.8, -1.0][: method.head.out_features]
    nn.init.zeros_(method.head.weight)
    with torch.no_grad():
        method.head.bias.copy_(torch.tensor(z))
    method.draw_replay = method.draw_second = lambda: torch.tensor([24])
    assert method.pool.y[[0, 24]].tolist() == [2, 0]
    loss = one_step(method, torch.tensor([0])).item()
    stored = method.memory.extras["logits"][0, :2].tolist()  # not of future classes
    distance = sum((a - b) ** 2 for a, b in zip(z, stored, strict=False)) / len(stored)
    expected = entropy(z[2:], 0) + 0.5 * distance + 3 * entropy(z, 0)
    shares = torch.tensor(z[:4]).softmax(0)
    expected += 2 * max(0.0, float(shares[0] - shares[2]) + 0.3)
    if head == "fixed":  # 0.8 is 0.2 above 0.9 − 0.3 and 0.8 above 0.3 − 0.3
        expected += 2 * (0.2 + 0.8) / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def test_each_softmax_takes_its_share_of_a_soft_label(benchmark, make_training):
    run = make_training("x-der", benchmark=benchmark, label_smoothing=0.2)
    run.stop_in_task(1)
    z = [0.3, -0.2, 0.9, 0.1, 0.8, -1.0]
    labels = torch.tensor([[0.25, 0.0, 0.75, 0.0, 0.0, 0.0]])
    old = 0.8 * entropy(z[:2], 0) + 0.2 * sum(entropy(z[:2], k) for k in range(2)) / 2
    new = 0.8 * entropy(z[2:], 0) + 0.2 * sum(entropy(z[2:], k) for k in range(4)) / 4
    found = run.method.separate(torch.tensor([z]), labels).item()
    assert found == pytest.approx(0.25 * old + 0.75 * new, rel=1e-5)


def test_temper_by_hand():
    """The largest becomes γ times the label's; lower rows stay; a negative label gives 0."""
    logits = torch.tensor([[4.0, -2.0], [1.0, 0.5], [1.0, -10.0], [-1.0, -2.0]])
    label = torch.tensor([[2.0], [2.0], [-1.0], [-2.0]])
    expected = [[1.0, -0.5], [1.0, 0.5], [0.0, 0.0], [-1.0, -2.0]]
    assert temper(logits, label, 0.5).tolist() == expected


def test_the_mean_excess_counts_positive_gaps_only():
    assert mean_excess(torch.tensor([-1.0, 2.0, 0.0, 4.0])).item() == 3.0
    assert mean_excess(torch.tensor([-1.0])).item() == 0.0


@pytest.mark.parametrize("head", ["fixed", "growing"])
def test_stored_logits_learn_about_the_classes_of_other_tasks(head, benchmark, make_training):
    run = make_training("x-der", benchmark=benchmark, head=head, exemplars=2, epochs=5)
    run.run_tasks(1)
    method, memory = run.method, run.method.memory
    before = memory.extras["logits"].clone()
    run.run_tasks(2)
    stored, y = memory.extras["logits"], memory.y
    now = method.predict(method.normalise(memory.x))
    own = stored.gather(1, y[:, None])
    old, new = y < 2, y >= 2
    assert torch.equal(stored[old][:, :2], before[:, :2])
    torch.testing.assert_close(stored[old][:, 2:4], temper(now[old][:, 2:4], own[old], 0.85))
    torch.testing.assert_close(stored[new][:, :2], temper(now[new][:, :2], own[new], 0.85))
    torch.testing.assert_close(stored[new][:, 2:], now[new][:, 2:])
    if head == "fixed":
        assert torch.equal(stored[old][:, 4:], before[:, 4:])  # future classes
    assert memory.extras["known"].tolist() == [4] * 8


def test_the_second_draw_has_all_classes_in_equal_shares(blobs, make_training):
    """Four classes, two of them with 100 samples and two with 2 exemplars."""
    run = make_training("x-der", benchmark=blobs(((9, 9), (100, 100))), exemplars=2)
    run.stop_in_task(1)
    drawn = torch.cat([run.method.draw_second() for _ in range(250)])  # 4 at a time
    shares = run.method.pool.y[drawn].bincount(minlength=4) / len(drawn)
    assert bool((shares - 0.25).abs().max() < 0.06)
