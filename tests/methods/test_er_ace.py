"""ER-ACE: new samples compete with the classes beside them; the replay covers all classes."""

import math

import pytest
import torch

Z = [1.0, 2.0, 0.5, -1.0, 3.0, 0.0]


def log_sum(*values):
    return math.log(sum(map(math.exp, values)))


@pytest.fixture
def method(make_training):
    run = make_training("er-ace")
    run.stop_in_task(1)
    return run.method


def test_the_loss_by_hand(method, give_logits, one_step):
    """B1 has classes 2 and 3 and leaves out the others; B2 has classes 0 and 2."""
    give_logits(method.head, Z)
    assert method.pool.y[[0, 16, 17, 1]].tolist() == [2, 3, 0, 2]
    method.join = lambda new: torch.cat([new, torch.tensor([[17, 1]])], dim=1)
    loss = one_step(method, torch.tensor([0, 16]))
    own = log_sum(Z[2], Z[3]) - (Z[2] + Z[3]) / 2
    replayed = log_sum(*Z) - (Z[0] + Z[2]) / 2
    assert loss.item() == pytest.approx(own + replayed, rel=1e-5)


def test_a_mixed_row_with_another_class_is_compared_with_all(method):
    targets = torch.zeros(2, 6)
    targets[0, [2, 3]] = torch.tensor([0.25, 0.75])
    targets[1, [0, 3]] = torch.tensor([0.25, 0.75])
    loss = method.loss_among(torch.tensor([2, 3]), torch.tensor([Z, Z]), targets)
    inside = log_sum(Z[2], Z[3]) - 0.25 * Z[2] - 0.75 * Z[3]
    outside = log_sum(*Z) - 0.25 * Z[0] - 0.75 * Z[3]
    assert loss.item() == pytest.approx((inside + outside) / 2, rel=1e-5)


def test_the_replay_has_as_many_samples_of_current_classes_as_of_old_ones(method):
    rows = method.replayable()
    assert method.pool.y[rows].bincount().tolist() == [3, 3, 3, 3]
    assert len(rows.unique()) == 12
    others = method.replayable()
    assert rows.sort().values.tolist() != others.sort().values.tolist()  # drawn anew
    joined = method.join(torch.arange(16).view(2, 8))
    assert joined.shape == (2, 8 + 6)
    assert set(joined[:, 8:].flatten().tolist()) <= set(range(17 + 6))


def test_the_first_task_is_that_of_er(make_training, assert_same):
    ace, er = make_training("er-ace"), make_training("er")
    ace.run_tasks(1)
    er.run_tasks(1)
    assert_same(ace.method.state_dict(), er.method.state_dict())


def test_absent_classes_have_no_gradient(make_training, blobs):
    """A step on B1 alone does not touch the outputs of classes that it does not contain."""
    run = make_training("er-ace", benchmark=blobs(noise=60))
    run.stop_in_task(1)
    method = run.method
    x, y = method.pool.batch(torch.tensor([0, 1, 16]))
    targets = torch.nn.functional.one_hot(y, 6).float()
    loss = method.loss_among(y.unique(), method.model(x), targets)
    (gradient,) = torch.autograd.grad(loss, [method.head.weight])
    lengths = gradient.norm(dim=1)
    assert lengths[[0, 1, 4, 5]].tolist() == [0.0] * 4
    assert bool((lengths[[2, 3]] > 0).all())
