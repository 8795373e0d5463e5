"""Logit adjustment: the shares of classes by hand, the loss, the criterion, and who refuses it."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.scores import Exemplars
from gradmix.errors import InputError
from gradmix.methods import METHODS
from gradmix.runs.config import config_for
from gradmix.settings import CriterionSettings

B1, B2, NEW, MEMORY = 8, 6, 17, 6  # rows of a step; samples of the second task and in memory


@pytest.fixture
def in_second_task(make_training):
    def call(method="er", mix="none", tau=1.0, **given):
        run = make_training(method, mix, logit_adjustment=tau, **given)
        run.stop_in_task(1)
        return run.method

    return call


def test_shares_by_hand(in_second_task):
    """9 and 8 new samples of classes 2 and 3, 3 exemplars each of 0 and 1; 4 and 5 have none."""
    shares = in_second_task().class_shares().tolist()
    half = B2 / (B1 + B2) / 2
    expected = [half, half, B1 / (B1 + B2) * 9 / NEW, B1 / (B1 + B2) * 8 / NEW, 0, 0]
    assert shares == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "mix", "old"),  # share of the old classes
    [
        ("er-ace", "none", 1 / 2),
        ("der", "none", 0),
        ("der", "mixup", B2 / (B1 + B2)),
        ("der++", "none", 1 / 3),  # 1 for B1, β = ½ for the second draw
        ("a-gem", "none", 0),
        ("lwf", "none", 0),
        ("gdumb", "none", 1 / 2),
        ("joint", "none", 25 / 42),
    ],
)
def test_shares_of_old_classes_in_the_loss(method, mix, old, in_second_task):
    shares = in_second_task(method, mix).class_shares()
    assert shares[:2].sum().item() == pytest.approx(old, abs=1e-6)
    assert shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_the_loss_adds_the_logarithm_of_the_shares(tau, in_second_task, one_step):
    method = in_second_task(tau=tau)
    shares = [max(share, 1 / (NEW + MEMORY)) for share in method.class_shares().tolist()]
    adjustment = tau * torch.tensor(shares).log()
    before = copy.deepcopy(method.model)
    loss = one_step(method, torch.arange(8))
    rows = method.plan.index[0]
    outputs = before(method.pool.inputs(rows)) + adjustment
    torch.testing.assert_close(loss, F.cross_entropy(outputs, method.pool.y[rows]))


def test_the_criterion_uses_the_same_probabilities(in_second_task):
    method = in_second_task(mix="gradmix", tau=2.0)
    pool, pairs = method.pool, method.selector
    index = torch.arange(len(pool.y))
    pairs._draw_exemplars = lambda: index
    pairs._ratios = lambda: [0.3]
    pairs.refresh(method.model, method.head, method.adjustment)
    embeddings = method.model.features(pool.inputs(index), None, None).detach()
    logits = (method.head(embeddings) + method.adjustment).detach()
    exemplars = Exemplars(embeddings, logits, pool.y)
    expected = reference_pair_table(exemplars, index >= NEW, 0.3, CriterionSettings())
    torch.testing.assert_close(pairs.tables[0].scores, expected.scores, atol=1e-5, rtol=1e-4)
    plain = reference_pair_table(
        exemplars._replace(logits=logits - method.adjustment), index >= NEW, 0.3
    )
    assert not torch.allclose(pairs.tables[0].scores, plain.scores, atol=1e-3)


def test_the_criterion_for_many_classes_uses_them_too(in_second_task):
    """Its favourites and all scores are those of a head whose biases contain the adjustment."""
    method = in_second_task(mix="gradmix", criterion="clusters")
    head = copy.deepcopy(method.head)
    with torch.no_grad():
        head.bias += method.adjustment
    tables = []
    for one, adjustment in ((method.head, method.adjustment), (head, None)):
        streams = method.streams.state_dict()
        method.model.head = one
        method.selector.refresh(method.model, one, adjustment)
        tables.append(method.selector.state_dict())
        method.streams.load_state_dict(streams)
    sketches = [table["on_demand"]["sketch"] for table in tables]
    torch.testing.assert_close(sketches[0], sketches[1])


def test_zero_changes_no_bit(make_training, assert_same):
    one, other = make_training(logit_adjustment=0.0), make_training()
    one.finish()
    other.finish()
    assert_same(one.state_dict(), other.state_dict())
    assert one.method.adjustment is None


def test_predictions_are_not_adjusted(in_second_task):
    method, x = in_second_task(), torch.rand(3, 1, 8, 8)
    assert torch.equal(method.predict(x), method.model(x))


@pytest.mark.parametrize("method", [n for n, i in METHODS.items() if i.build.trains])
def test_every_method_takes_it_or_refuses_it(method, make_training):
    if METHODS[method].build.softmax:
        run = make_training(method, logit_adjustment=1.0)
        assert all(math.isfinite(event.loss) for event in run.finish() if hasattr(event, "loss"))
    else:
        with pytest.raises(InputError, match=r"logit_adjustment is 1\.0, which is for softmax"):
            config_for("digits", method=method, mix="none", logit_adjustment=1)
