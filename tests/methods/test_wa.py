"""WA: the distilled loss by hand, and new weights as long as old ones."""

import math

import pytest
import torch

from gradmix.training.loop import TaskDone

Z = [1.0, 2.0, 0.5, -1.0, 3.0, 0.0]
OLD = [0.0, 1.0, 7.0, 7.0, 7.0, 7.0]


def log_softmax(values, at):
    return values[at] - math.log(sum(map(math.exp, values)))


@pytest.mark.parametrize("name", ["wa", "bic"])
def test_the_loss_by_hand(name, make_training, give_logits, one_step):
    """Two of four classes are old: μ = ½."""
    run = make_training(name, replay_batch_size=1)
    run.stop_in_task(1)
    method = run.method
    give_logits(method.head, Z)
    give_logits(method.old.head, OLD)
    new = method.pool.num_new
    method.draw_replay = lambda: torch.tensor([new])
    assert method.pool.y[[0, new]].tolist() == [2, 0]
    loss = one_step(method, torch.tensor([0]))
    cross_entropy = -(log_softmax(Z, 2) + log_softmax(Z, 0)) / 2
    softened, answers = ([value / 2 for value in z[:2]] for z in (Z, OLD))
    kept = -sum(math.exp(log_softmax(answers, k)) * log_softmax(softened, k) for k in (0, 1))
    assert loss.item() == pytest.approx(0.5 * cross_entropy + 0.5 * kept, rel=1e-5)


@pytest.mark.parametrize("head", ["fixed", "growing"])
def test_new_weights_have_the_mean_length_of_old_ones(head, make_training):
    run = make_training("wa", head=head, epochs=3)
    end, before = run.method.end_task, []
    run.method.end_task = lambda new: before.append(run.method.head.weight.clone()) or end(new)
    for event in run.events():
        if isinstance(event, TaskDone):
            old, seen = 2 * event.task, 2 * event.task + 2
            weight = run.method.head.weight
            assert torch.equal(weight[:old], before[-1][:old])
            assert torch.equal(weight[seen:], before[-1][seen:])
            if event.task:
                lengths = weight.norm(dim=1)
                assert lengths[old:seen].mean().item() == pytest.approx(lengths[:old].mean().item())
            else:
                assert torch.equal(weight, before[-1])


def test_without_new_classes_half_of_the_loss_is_distillation(make_training, give_logits):
    run = make_training("wa")
    run.stop_in_task(1)
    method = run.method
    method.old_classes = method.seen = 2
    give_logits(method.head, Z)
    give_logits(method.old.head, OLD)
    mixed = method.mixed_batch(0)
    loss = method.train_step(0)
    outputs = torch.tensor([Z] * len(mixed.targets))
    plain = method.cross_entropy(outputs, mixed.targets)
    softened, answers = ([value / 2 for value in z[:2]] for z in (Z, OLD))
    kept = -sum(math.exp(log_softmax(answers, k)) * log_softmax(softened, k) for k in (0, 1))
    assert loss.item() == pytest.approx(0.5 * plain.item() + 0.5 * kept, rel=1e-5)
