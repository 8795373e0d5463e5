"""Optimizers, schedules, clipping and smoothing: hand-computed values, and exact resume."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.methods.optimizer import OPTIMIZERS, lr_factor
from gradmix.settings import TrainingSettings
from gradmix.training.loop import StepDone

SIZES = ((8, 8), (8, 8))  # 2 steps per epoch

OPTIONS = {
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw and cosine": {"optimizer": "adamw", "schedule": "cosine", "weight_decay": 0.1},
    "one-cycle": {"schedule": "one-cycle"},
    "warm-up": {"warmup": 1.5, "clip_norm": 0.1},
    "smoothing": {"label_smoothing": 0.2, "schedule": "constant"},
    "logit adjustment": {"logit_adjustment": 1.0},
    "all": {
        **{"optimizer": "adamw", "schedule": "one-cycle", "warmup": 0.5},
        **{"clip_norm": 1.0, "label_smoothing": 0.1},
    },
}
TRAINED = [name for name, info in METHODS.items() if info.build.trains]


def rates(run):
    """The learning rate of every step of the first task."""
    return [
        run.method.optimizer.param_groups[0]["lr"]
        for event in run.events()
        if isinstance(event, StepDone) and event.task == 0
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"schedule": "cosine"}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ({"warmup": 1}, [0.5, 1, 1, 1]),
        ({"warmup": 1, "lr_steps": (1,)}, [0.5, 1, 0.1, 0.1]),
        ({"schedule": "cosine", "warmup": 1}, [0.5, 1, 1, 0.5]),
        ({"schedule": "one-cycle", "warmup": 1}, [0.04, 0.52, 1, (1 + 4e-6) / 2]),
    ],
)
def test_learning_rates_of_two_epochs_of_two_steps(settings, expected, make_training, blobs):
    run = make_training(benchmark=blobs(SIZES), epochs=2, lr=0.1, **settings)
    assert rates(run) == pytest.approx([0.1 * factor for factor in expected])


def test_one_cycle_is_that_of_pytorch():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=1001, cycle_momentum=False
    )
    settings = TrainingSettings(schedule="one-cycle", epochs=10)
    for number in range(1000):  # theirs rises for 299.3 steps, ours for 300
        ours = lr_factor(settings, number / 100, 0.01, 10)
        assert ours == pytest.approx(theirs.get_last_lr()[0], abs=0.01)
        optimizer.step()
        theirs.step()


def test_a_shorter_stage_has_its_own_cosine():
    settings = TrainingSettings(schedule="cosine", epochs=10)
    assert lr_factor(settings, 2, 0.1, 4) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("method", "options"),
    [*(("er", options) for options in OPTIONS), *((method, "all") for method in TRAINED[1:])],
)
def test_resume_is_exact(method, options, make_training, blobs, assert_resumes):
    def make():
        return make_training(method, benchmark=blobs(SIZES), epochs=2, **OPTIONS[options])

    assert_resumes(make)


@pytest.mark.parametrize("norm", [1e-3, 1e3])
def test_a_gradient_is_clipped_to_its_norm(norm, make_training, blobs):
    run = make_training(benchmark=blobs(SIZES), clip_norm=norm, momentum=0.0, lr=1.0)
    before = [p.detach().clone() for p in run.method.model.parameters()]
    unclipped = make_training(benchmark=blobs(SIZES), momentum=0.0, lr=1.0)
    next(run.events())
    next(unclipped.events())
    moved, free = (
        [a - b for a, b in zip(one.method.model.parameters(), before, strict=True)]
        for one in (run, unclipped)
    )
    length = math.sqrt(sum(float(part.detach().square().sum()) for part in free))
    factor = min(1.0, norm / length)
    for ours, theirs in zip(moved, free, strict=True):
        torch.testing.assert_close(ours, theirs * factor, atol=1e-6, rtol=1e-3)


def test_smoothing_spreads_a_share_over_all_outputs(make_training):
    method = make_training(label_smoothing=0.3).method
    logits, labels = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([2])
    soft = torch.tensor([[0.1, 0.1, 0.8]])
    expected = -(soft * F.log_softmax(logits, 1)).sum()
    torch.testing.assert_close(method.cross_entropy(logits, labels), expected)
    torch.testing.assert_close(method.cross_entropy(logits, torch.eye(3)[labels]), expected)


def test_icarl_smooths_its_binary_labels(make_training, blobs, one_step):
    run = make_training("icarl", benchmark=blobs(SIZES), label_smoothing=0.2)
    start = copy.deepcopy(run.method.model)
    loss = next(run.events()).loss
    pool, new = run.method.pool, run.method.plan.index[0]
    outputs = start(pool.inputs(new))
    targets = F.one_hot(pool.y[new], outputs.shape[1]) * 0.8 + 0.2 / outputs.shape[1]
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(outputs, targets).detach())


def test_an_optimizer_of_your_own(monkeypatch, make_training):
    monkeypatch.setitem(OPTIMIZERS, "rms", lambda groups, s: torch.optim.RMSprop(groups, s.lr))
    run = make_training(optimizer="rms")
    next(run.events())
    assert isinstance(run.method.optimizer, torch.optim.RMSprop)


def test_an_unknown_optimizer_is_refused(make_training):
    with pytest.raises(InputError, match="unknown optimizer 'adan': did you mean 'adam'"):
        make_training(optimizer="adan")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosine", "lr_steps": (3,)}, "lr_steps belongs to the schedule 'steps'"),
        ({"warmup": 21}, r"warmup is 21\.0; there are only 20 epochs"),
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"label_smoothing": 1}, "label_smoothing is 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainingSettings(**settings)
