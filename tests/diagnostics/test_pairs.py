"""Scores of class pairs, approximated and true, against Algorithm 1 and autograd."""

import pytest
import torch

from gradmix.criterion import embed
from gradmix.criterion.reference import reference_pair_table
from gradmix.diagnostics import approximation, class_pair_scores
from gradmix.settings import CriterionSettings

LAMBDAS = (0.0, 0.3, 0.5, 1.0)


@pytest.fixture(scope="session")
def scores_of(samples):
    def scores_of(model, **settings):
        memory, current = samples()
        return class_pair_scores(model, memory, current, lambdas=LAMBDAS, **settings)

    return scores_of


@pytest.mark.parametrize("average", ["sample", "class"])
@pytest.mark.parametrize("bias", [True, False])
def test_approximated_ones_are_those_of_algorithm_1(
    bias, average, make, last_layer_of, everyone, scores_of
):
    model = make("sequential", bias)
    head, (x, y) = last_layer_of(model), everyone()
    exemplars = embed(model, head, x, y)
    memory = torch.arange(len(y)) >= 6
    scores = scores_of(model, average=average)
    for lam, ours in zip(LAMBDAS, scores.by_class(scores.approximated), strict=True):
        table = reference_pair_table(
            exemplars, memory, lam, CriterionSettings(average=average), bias=bias
        )
        assert torch.equal(scores.pairs.classes, table.classes)
        torch.testing.assert_close(ours, table.scores, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_true_ones_are_those_of_the_mixed_input(
    bias, monkeypatch, make, samples, one_hot, gradient, memory_gradient, everyone, scores_of
):
    monkeypatch.setattr(approximation, "BLOCK", 7)  # several blocks
    model, (memory, _) = make("residual", bias), samples()
    x, y = everyone()
    remembered = memory_gradient(model, False, memory, "sample")
    scores = scores_of(model)
    classes = y.unique().tolist()
    for lam, ours in zip(LAMBDAS, scores.by_class(scores.true), strict=True):
        for a, first in enumerate(classes):
            for b, second in enumerate(classes):
                of_a, of_b = ((y == label).nonzero().squeeze(1) for label in (first, second))
                each = []
                for k in range(max(len(of_a), len(of_b))):
                    i, j = of_a[k % len(of_a)], of_b[(k + 1) % len(of_b)]
                    target = lam * one_hot(y[i]) + (1 - lam) * one_hot(y[j])
                    mixed = lam * x[i] + (1 - lam) * x[j]
                    each.append(remembered @ gradient(model, False, mixed, target))
                expected = torch.stack(each).mean()
                torch.testing.assert_close(ours[a, b].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["sequential", "residual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_ends_both_are_the_same_to_the_bit(kind, dtype, make, samples):
    model = make(kind, dtype=dtype)
    scores = class_pair_scores(model, *samples(dtype), lambdas=[0.0, 1.0, 0.5])
    assert torch.equal(scores.approximated[:2], scores.true[:2])
    assert not torch.allclose(scores.approximated[2], scores.true[2], atol=1e-3)


def test_some_rows_are_rows_of_the_whole(make, seeded, scores_of):
    model = make("sequential")
    every = scores_of(model)
    seen = set()
    for seed in range(10):
        some = scores_of(model, rows=2, generator=seeded(seed))
        assert len(some.pairs.rows) == 2
        for kind in ("approximated", "true"):
            ours = some.by_class(getattr(some, kind))
            expected = every.by_class(getattr(every, kind))[:, some.pairs.rows]
            torch.testing.assert_close(ours, expected)
        seen |= set(some.pairs.rows.tolist())
    assert seen == set(range(5))


def test_few_exemplars_are_drawn_of_every_class_and_the_whole_memory_is_protected(
    make, seeded, scores_of
):
    model, rows = make("sequential"), []
    hook = model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    scores = scores_of(model, criterion_exemplars=2, generator=seeded())
    hook.remove()
    assert rows[0] == 5
    assert scores.pairs.cell.bincount().tolist() == [
        max(a, b) for a in (2, 1, 2, 1, 2) for b in (2, 1, 2, 1, 2)
    ]


def test_more_outputs_than_classes_do_no_harm(make, scores_of):
    scores = scores_of(make("linear"))
    assert scores.pairs.classes.tolist() == [0, 1, 2, 3, 5]
