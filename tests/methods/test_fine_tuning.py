"""Fine-tuning in the loop: the head in closed form, two learning rates, exact resume."""

import copy

import pytest
import torch
from torch import nn

from gradmix.closed_form import Ridge
from gradmix.methods import METHODS
from gradmix.methods.er import ExtendsNetwork
from gradmix.models.finetune import fine_tune
from gradmix.models.pretrained import from_module
from gradmix.training.loop import StepDone

SIZES = ((8, 8), (8, 8))
FINE_TUNED = [
    name
    for name, info in METHODS.items()
    if info.build.trains and not issubclass(info.build, ExtendsNetwork)  # which need a Network
]


@pytest.fixture(scope="module")
def backbone():
    generator = torch.Generator().manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
    )
    for parameter in layers.parameters():
        nn.init.normal_(parameter, generator=generator)
    return from_module(layers, input_size=8)


@pytest.fixture(scope="module")
def tuning(make_training, blobs, backbone):
    """Return a function that makes a training with a fine-tuned network."""

    def make(method="er", mix="none", finetune="all", **settings):
        def network(outputs):
            generator = torch.Generator().manual_seed(3)
            return fine_tune(backbone, outputs, finetune, generator=generator)

        return make_training(method, mix, network, benchmark=blobs(SIZES), **settings)

    return make


def test_the_first_head_is_ridge_regression_on_the_features(tuning):
    run = tuning(lr=1e-9)
    next(run.events())
    method = run.method
    rows = torch.arange(len(method.pool))
    x = method.model.eval().features(method.pool.inputs(rows)).detach()
    ridge = Ridge(8, normalise=False)
    ridge.update(x, method.pool.y)
    logits = method.head(x).detach()
    ours, theirs = logits[:, :2].double(), ridge.scores(x)
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    ratio = (ours * theirs).sum() / theirs.square().sum()  # one over the temperature
    torch.testing.assert_close(ours, ratio * theirs, atol=1e-4, rtol=1e-3)
    assert ratio > 0
    assert float(logits[:, 2:].max()) <= float(logits[:, :2].min()) + 1e-4  # classes to come


def test_the_head_knows_all_classes_before_the_first_step(tuning):
    run = tuning(lr=1e-9, exemplars=4)
    run.run_tasks(1)
    next(run.events())
    method = run.method
    rows = torch.arange(len(method.pool))
    guesses = method.predict(method.pool.inputs(rows)).argmax(1)
    assert (guesses == method.pool.y).float().mean() > 0.9


def test_pretrained_layers_have_a_lower_rate(tuning):
    run = tuning(lr=0.5, backbone_lr_scale=0.02, schedule="cosine", epochs=2)
    rates = [
        [group["lr"] for group in run.method.optimizer.param_groups]
        for event in run.events()
        if isinstance(event, StepDone)
    ]
    assert rates[0] == [0.5, 0.01]
    assert all(low == pytest.approx(0.02 * high) for high, low in rates)


@pytest.mark.parametrize("finetune", ["last", "all"])
def test_frozen_layers_stay_as_they_are(tuning, finetune):
    run = tuning(finetune=finetune, lr=0.1)
    before = copy.deepcopy(run.method.model.state_dict())
    frozen = {n for n, p in run.method.model.named_parameters() if not p.requires_grad}
    run.finish()
    after = run.method.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name, _ in run.method.model.named_parameters()} - frozen
    assert changed == trained
    assert bool(frozen) == (finetune == "last")


@pytest.mark.parametrize(
    ("method", "mix"),
    [
        *((method, "none") for method in FINE_TUNED),
        *(("er", mix) for mix in ("gradmix+", "cutmix", "manifold-mixup", "balanced-mixup")),
    ],
)
def test_resume_is_exact(method, mix, tuning, assert_resumes):
    def make():
        return tuning(method, mix, "last", head="growing", optimizer="adamw", epochs=2)

    assert_resumes(make)
