"""LwF: the classes of the task among themselves, and old outputs as they were."""

import math

import pytest
import torch

Z = [1.0, 2.0, 0.5, -1.0, 3.0, 0.0]
OLD = [0.0, 1.0, 7.0, 7.0, 7.0, 7.0]


def log_softmax(values, at):
    return values[at] - math.log(sum(map(math.exp, values)))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_loss_by_hand(temperature, make_training, give_logits, one_step):
    options = {"distill": 3.0, "temperature": temperature}
    run = make_training("lwf", options=options)
    run.stop_in_task(1)
    method = run.method
    give_logits(method.head, Z)
    give_logits(method.old.head, OLD)
    assert method.pool.y[[0, 16]].tolist() == [2, 3]
    loss = one_step(method, torch.tensor([0, 16]))
    expected = -(log_softmax(Z[2:4], 0) + log_softmax(Z[2:4], 1)) / 2
    softened, answers = ([value / temperature for value in z[:2]] for z in (Z, OLD))
    for k in (0, 1):
        expected -= 3 * math.exp(log_softmax(answers, k)) * log_softmax(softened, k)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_old_network_rests_and_knows_the_earlier_classes(make_training):
    run = make_training("lwf", head="growing")
    run.run_tasks(2)
    before = [parameter.clone() for parameter in run.method.model.parameters()]
    run.stop_in_task(2, steps=2)
    method = run.method
    assert (method.old_classes, method.seen) == (4, 6)
    old = list(method.old.parameters())
    assert all(torch.equal(a, b) for a, b in zip(old[:-2], before[:-2], strict=True))
    assert torch.equal(method.old.head.weight[:4], before[-2])
    assert not any(parameter.requires_grad for parameter in old)


def test_it_forgets_less_within_a_task_than_fine_tuning(make_training, blobs):
    """Among the outputs of the first task alone, which distillation keeps."""
    right = {}
    for name in ("lwf", "finetune"):
        run = make_training(name, benchmark=blobs(noise=90, tests=40), epochs=15, lr=0.02)
        run.finish()
        x, y = run.benchmark.tasks[0].test
        scores = run.method.predict(run.method.normalise(x))[:, :2]
        right[name] = float((scores.argmax(1) == y).float().mean())
    assert right["lwf"] >= max(0.9, right["finetune"])


def test_nothing_is_stored(make_training):
    run = make_training("lwf")
    run.finish()
    assert len(run.method.memory) == 0
