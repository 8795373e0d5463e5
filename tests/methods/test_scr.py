"""SCR: the contrastive loss, the views, what each part learns from, and predictions by means."""

import math

import pytest
import torch
from torch.nn import functional as F

from gradmix.data.augment import second_view
from gradmix.methods.scr import supervised_contrast


def test_the_loss_by_hand():
    """Three rows at right angles or equal, temperature 1: e for the equal pair, 1 otherwise."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    same = math.log(math.e + 1)  # minus a logarithm; the equal pair has 1 less
    expected = (2 * (same - 1 + same) / 2 + math.log(2)) / 3
    assert supervised_contrast(rows, labels, 1.0).item() == pytest.approx(expected)
    labels[2] = torch.tensor([0.5, 0.5])  # the third counts half as much for the first two
    expected = (2 * ((same - 1) + 0.5 * same) / 1.5 + math.log(2)) / 3
    assert supervised_contrast(rows, labels, 1.0).item() == pytest.approx(expected)


def test_with_hard_labels_it_is_the_loss_of_the_paper(seeded):
    """By definition, row by row: the mean over the positives, which share the label."""
    rows = F.normalize(torch.randn(8, 5, generator=seeded()), dim=1)
    y = torch.tensor([0, 1, 1, 2, 0, 1, 1, 2])
    total = 0.0
    for i in range(8):
        others = [j for j in range(8) if j != i]
        below = sum(math.exp(float(rows[i] @ rows[j]) / 0.07) for j in others)
        positives = [j for j in others if y[j] == y[i]]
        logs = [float(rows[i] @ rows[j]) / 0.07 - math.log(below) for j in positives]
        total -= sum(logs) / len(logs)
    ours = supervised_contrast(rows, F.one_hot(y, 3).float(), 0.07)
    assert ours.item() == pytest.approx(total / 8, rel=1e-4)


def test_a_step_is_the_loss_of_two_views_and_of_the_head(make_training, one_step, blobs):
    run = make_training("scr", benchmark=blobs(((16, 16), (12, 12)), noise=60))
    run.stop_in_task(1)
    method, new = run.method, torch.arange(8)
    method.draw_replay = lambda: torch.arange(24, 30)
    before = method.streams.device("views").get_state()
    loss = one_step(method, new)
    method.streams.device("views").set_state(before)
    rows = torch.arange(30)[torch.cat([new, torch.arange(24, 30)])]
    x, y = method.pool.inputs(rows), method.pool.y[rows]
    other = second_view(x, method.normalise, smallest=0.2, generator=method.streams.device("views"))
    embeddings = torch.cat([method.model.features(x), method.model.features(other)])
    projected = F.normalize(method.projector(embeddings), dim=1)
    contrast = supervised_contrast(projected, F.one_hot(y.repeat(2), 4).float(), 0.07)
    expected = contrast + F.cross_entropy(method.model(x), y)
    torch.testing.assert_close(loss, expected)


def test_the_head_learns_from_the_embeddings_without_changing_them(make_training, one_step):
    run = make_training("scr", options={"temperature": 1e6})  # no similarity matters
    run.stop_in_task(1)
    method = run.method
    method.model.zero_grad()
    one_step(method, torch.arange(8)).backward()
    size = {name: float(p.grad.norm()) for name, p in method.model.named_parameters()}
    assert size["head.weight"] > 1e-2
    assert max(value for name, value in size.items() if not name.startswith("head")) < 1e-4


def test_the_first_task_trains_without_a_memory(make_training, blobs):
    run = make_training("scr", benchmark=blobs(((16, 16), (16, 16)), noise=110), epochs=10)
    before = run.method.model.shared[0].weight.clone()
    run.run_tasks(1)
    assert not torch.equal(run.method.model.shared[0].weight, before)
    assert run.accuracies()[0] > 0.8


def test_a_prediction_is_the_nearest_mean(make_training):
    run = make_training("scr")
    run.run_tasks(2)
    method = run.method
    method.model.eval()
    x, y = method.memory.samples
    features = F.normalize(method.model.features(method.normalise(x)), dim=1)
    means = torch.stack([F.normalize(features[y == c].mean(0), dim=0) for c in range(4)])
    queries = torch.rand(5, 1, 8, 8)
    near = torch.cdist(F.normalize(method.model.features(queries), dim=1), means).argmin(1)
    assert torch.equal(method.predict(queries).argmax(1), near)
