"""BiC: held-out samples, and two numbers that correct the scores of new classes."""

import math

import pytest
import torch

from gradmix.errors import InputError
from gradmix.methods.bic import RIDGE, fit_correction


@pytest.mark.parametrize("bias", [-1.5, 0.0, 3.0])
def test_the_correction_by_hand(bias):
    """All samples have scores (0, c), and half of them are of the old class.

    With u = α c + β the conditions are σ(u) − ½ = −2 R β and α − 1 = c β.
    """
    logits = torch.tensor([[0.0, bias]] * 4)
    alpha, beta = fit_correction(logits, torch.tensor([0, 1, 0, 1]), old=1)
    assert alpha - 1 == pytest.approx(bias * beta, abs=1e-5)
    u = alpha * bias + beta
    assert 1 / (1 + math.exp(-u)) - 0.5 == pytest.approx(-2 * RIDGE * beta, abs=1e-6)
    assert abs(u) <= 0.2 * abs(bias)


def test_a_bias_is_removed():
    """Afterwards the new classes are predicted as often as they occur, up to the pull."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    logits = torch.nn.functional.one_hot(labels, 4) + torch.randn(200, 4, generator=generator)
    logits[:, 2:] += 2.0
    alpha, beta = fit_correction(logits, labels, old=2)
    corrected = torch.cat([logits[:, :2], alpha * logits[:, 2:] + beta], dim=1)
    shares = [z.softmax(1)[:, 2:].sum(1).mean().item() for z in (logits, corrected)]
    actual = (labels >= 2).float().mean().item()
    assert shares[0] > actual + 0.2
    assert shares[1] - actual == pytest.approx(-2 * RIDGE * beta, abs=1e-5)


def test_the_head_contains_the_correction(make_training):
    run = make_training("bic")
    run.stop_in_task(1)
    method, x = run.method, torch.rand(5, 1, 8, 8)
    before = method.predict(x)
    method.correct_head(2.0, -0.5)
    after = method.predict(x)
    expected = before.clone()
    expected[:, 2:4] = 2 * before[:, 2:4] - 0.5
    torch.testing.assert_close(after, expected)


def test_held_out_samples_are_not_trained_on(make_training, blobs):
    run = make_training(
        "bic", "gradmix+", exemplars=5, options={"holdout": 0.4}, benchmark=blobs(((9, 9), (9, 9)))
    )
    assert len(run.method.held) == 0
    run.stop_in_task(1)
    method = run.method
    whole, held = method.whole, method.held
    assert whole.y[held].bincount().tolist() == [2, 2, 2, 2]
    assert (held < 18).sum() == 4  # of the new classes
    assert len(method.pool) == len(whole) - 8
    assert method.pool.num_new == 14
    images = {image.numpy().tobytes() for image in whole.inputs(held)}
    kept = method.pool.inputs(torch.arange(len(method.pool)))
    assert not images & {image.numpy().tobytes() for image in kept}
    assert method.replay_size == 6
    assert set(method.draw_replay().tolist()) == set(range(14, 20))
    run.finish()
    assert method.memory.y.bincount().tolist() == [5] * 4
    assert len(method.held) == 0


def test_the_correction_is_the_one_of_the_held_out_samples(make_training, monkeypatch):
    run = make_training("bic")
    run.run_tasks(1)
    given = []

    def fit(logits, labels, old):
        given.append((logits, labels, old))
        return 1.0, 0.0

    monkeypatch.setattr("gradmix.methods.bic.fit_correction", fit)
    run.run_tasks(2)
    ((logits, labels, old),) = given
    assert (logits.shape, old) == ((4, 4), 2)
    assert sorted(labels.tolist()) == [0, 1, 2, 3]


def test_single_exemplars_are_not_held_out(make_training):
    run = make_training("bic", exemplars=1)
    run.stop_in_task(1)
    assert len(run.method.held) == 0
    run.finish()


@pytest.mark.parametrize(
    ("held", "message"),
    [([1000], "held has rows outside"), ([-1], "held has rows"), (range(17), "held has all")],
)
def test_impossible_rows_are_refused(held, message, make_training):
    run = make_training("bic")
    run.stop_in_task(1)
    state = run.state_dict()
    state["method"]["held"] = torch.tensor(held)
    with pytest.raises(InputError, match=message):
        make_training("bic").load_state_dict(state)
