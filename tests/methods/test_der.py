"""DER: logits as they were when stored; what is compared with them, and how it weighs."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from gradmix.methods.der import DER
from gradmix.randomness import RandomStreams

METHODS = ["der", "der++"]


@pytest.fixture(scope="module")
def in_task(blobs, make_training):
    """The run after the first step of a task (from 0), and a batch of its new samples."""

    def call(number, method="der", **given):
        run = make_training(method, **{"exemplars": 5, "benchmark": blobs(noise=60), **given})
        run.stop_in_task(number)
        return run.method, torch.arange(8)

    return call


def next_draws(method, number):
    """The pool indices that the next draws from the memory will give."""
    peek = RandomStreams(method.streams.seed)
    peek.load_state_dict(method.streams.state_dict())
    generator, size = peek.device("replay"), method.settings.replay_batch_size
    memory = len(method.memory)
    draws = [torch.randperm(memory, generator=generator)[:size] for _ in range(number)]
    return [draw + method.pool.num_new for draw in draws]


@pytest.mark.parametrize("network", ["mlp", "resnet"])
@pytest.mark.parametrize("head", ["fixed", "growing"])
@pytest.mark.parametrize("method", METHODS)
def test_stored_logits_are_those_of_their_moment(method, head, network, make_training):
    run = make_training(method, network=network, head=head)
    stored = []
    for task in (1, 2, 3):
        run.run_tasks(task)
        memory, seen = run.method.memory, 2 * task
        own = memory.y >= seen - 2
        outputs = seen if head == "growing" else 6
        now = run.method.predict(run.method.normalise(memory.x[own]))
        assert now.shape[1] == outputs
        logits = memory.extras["logits"]
        torch.testing.assert_close(logits[own], now, atol=1e-5, rtol=1e-4)
        assert memory.extras["known"][own].tolist() == [outputs] * 6
        for rows, width, old in stored:  # of earlier tasks: not a bit has changed
            assert torch.equal(logits[rows][:, :width], old)
            assert logits[rows][:, width:].abs().sum() == 0
        stored.append((own.nonzero().squeeze(1), outputs, logits[own].clone()))
    earlier = memory.y < 2
    later = run.method.predict(run.method.normalise(memory.x[earlier]))[:, :2]
    assert not torch.allclose(later, logits[earlier][:, :2], atol=1e-3)  # the network moved on


def test_the_distance_by_hand():
    """Of exemplars with 1 and 2 outputs stored: ((1 − 0)² + (4 − 4)² + (5 − 3)²) / 3."""
    logits = torch.tensor([[7.0, 7.0], [0.0, 0.0], [4.0, 3.0]])
    extras = {"logits": logits, "known": torch.tensor([2, 1, 2])}
    method = SimpleNamespace(
        pool=SimpleNamespace(num_new=10), memory=SimpleNamespace(extras=extras)
    )
    outputs = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert DER.distance(method, outputs, torch.tensor([11, 12])) == pytest.approx(5 / 3)


@pytest.mark.parametrize("head", ["fixed", "growing"])
def test_the_loss_by_hand(head, in_task, one_step):
    """CE(B1) + α · MSE(B2), over the outputs that were there."""
    method, new = in_task(2, head=head, options={"alpha": 0.3})
    (replay,) = next_draws(method, 1)
    with torch.no_grad():
        outputs = method.model(method.pool.inputs(torch.cat([new, replay])))
    squares = []
    for row, index in zip(outputs[8:], replay - method.pool.num_new, strict=True):
        known = 6 if head == "fixed" else 2 * (int(method.memory.y[index]) // 2 + 1)
        stored = method.memory.extras["logits"][index]
        squares += [float(row[k] - stored[k]) ** 2 for k in range(known)]
    expected = float(F.cross_entropy(outputs[:8], method.pool.y[new]))
    expected += 0.3 * sum(squares) / len(squares)
    assert one_step(method, new).item() == pytest.approx(expected, rel=1e-5)


def test_der_plus_plus_adds_the_cross_entropy_of_a_second_draw(in_task, one_step):
    der, new = in_task(1, "der")
    plus, _ = in_task(1, "der++", options={"beta": 0.7})
    plus.model.load_state_dict(der.model.state_dict())
    for name, rows in der.memory.extras.items():
        plus.memory.extras[name] = rows
    plus.streams.load_state_dict(der.streams.state_dict())
    assert torch.equal(plus.memory.x, der.memory.x)
    _, second = next_draws(der, 2)
    added = F.cross_entropy(der.model(der.pool.inputs(second)), der.pool.y[second])
    expected = one_step(der, new) + 0.7 * added
    torch.testing.assert_close(one_step(plus, new), expected)


def shuffled_labels(method):
    old = method.pool.y[method.pool.num_new :]
    old.copy_(old.roll(3))


@pytest.mark.parametrize(("mix", "same"), [("none", True), ("mixup", False), ("gradmix+", False)])
def test_unmixed_the_labels_of_the_memory_are_not_used(mix, same, in_task, one_step):
    losses = []
    for change in (lambda method: None, shuffled_labels):
        method, new = in_task(2, mix=mix)
        change(method)
        losses.append(one_step(method, new))
    assert torch.equal(*losses) == same


@pytest.mark.parametrize("mix", ["mixup", "cutmix", "manifold-mixup", "gradmix+"])
def test_mixed_the_distance_is_that_of_the_unmixed_replay(mix, in_task, one_step):
    """Whatever the mix, α weighs the same distance."""
    values = []
    for alpha in (0.0, 1.0):
        method, new = in_task(1, mix=mix, options={"alpha": alpha})
        if values:
            method.model.load_state_dict(values[0][1])
            method.streams.load_state_dict(values[0][2])
            method.memory.extras.update(values[0][3])
            method.selector.load_state_dict(values[0][4])
        state = {name: value.clone() for name, value in method.model.state_dict().items()}
        streams, extras = method.streams.state_dict(), dict(method.memory.extras)
        tables = method.selector.state_dict()
        (replay,) = next_draws(method, 1)
        distance = method.distance(method.model(method.pool.inputs(replay)), replay)
        values.append((one_step(method, new).item(), state, streams, extras, tables))
    assert values[1][0] - values[0][0] == pytest.approx(distance.item(), rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_in_the_first_task_there_is_nothing_to_compare(method, in_task, one_step):
    learner, new = in_task(0, method)
    expected = F.cross_entropy(learner.model(learner.pool.inputs(new)), learner.pool.y[new])
    torch.testing.assert_close(one_step(learner, new), expected)


def test_with_no_weights_der_is_fine_tuning_that_keeps_a_memory(make_training):
    der = make_training("der", options={"alpha": 0.0})
    tuned = make_training("finetune")
    der.finish()
    tuned.finish()
    for name, value in tuned.method.model.state_dict().items():
        torch.testing.assert_close(der.method.model.state_dict()[name], value)


@pytest.mark.parametrize("mix", ["none", "mixup"])
def test_the_replay_is_transformed_mixed_or_not(mix, make_training, one_step):
    """With images turned to their negatives, the distance is that of the negatives' outputs."""
    run = make_training("der", mix, options={"alpha": 1e6})
    run.transforms = (lambda x, generator: 255 - x,)
    run.stop_in_task(1)
    method = run.method
    (replay,) = next_draws(method, 1)
    with torch.no_grad():
        views, images = (
            method.distance(method.model(x), replay)
            for x in (method.pool.augmented(replay), method.pool.inputs(replay))
        )
    assert abs(views - images) > 0.01 * views
    assert one_step(method, torch.arange(8)).item() == pytest.approx(1e6 * views.item(), rel=1e-3)
