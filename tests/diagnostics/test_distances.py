"""Cosine distances of gradients, without building any, against explicit ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from gradmix.diagnostics import class_distances, gradients
from gradmix.errors import InputError


@pytest.fixture(scope="session")
def literal(one_hot, gradient):
    def literal(model, x, y):
        gradients = [gradient(model, False, *s) for s in zip(x, one_hot(y), strict=True)]
        within, between = [], []
        for i, one in enumerate(gradients):
            for j, other in enumerate(gradients):
                if i != j:
                    distance = 1 - float(F.cosine_similarity(one, other, dim=0))
                    (within if y[i] == y[j] else between).append(distance)
        return sum(within) / len(within), sum(between) / len(between)

    return literal


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["sequential", "residual"]), st.booleans(), st.integers(0, 2**31))
def test_they_are_those_of_explicit_gradients(make, everyone, literal, kind, bias, seed):
    model, (x, y) = make(kind, bias, seed), everyone()
    assert class_distances(model, (x, y)) == pytest.approx(literal(model, x, y), abs=1e-5)


def test_blocks_make_no_difference(monkeypatch, make, everyone):
    model, given_samples = make("sequential"), everyone()
    whole = class_distances(model, given_samples)
    monkeypatch.setattr(gradients, "BLOCK", 4)
    assert class_distances(model, given_samples) == pytest.approx(whole, abs=1e-12)


def test_by_hand():
    """Two outputs and no bias: δ is ±(1, −1) by class, so a cosine is ± that of the inputs."""
    model = nn.Linear(2, 2, bias=False)
    x = torch.tensor([[1.0, 0.0], [0.0, 5.0], [2.0, 0.0]])
    within, between = class_distances(model, (x, torch.tensor([0, 0, 1])))
    assert within == pytest.approx(1.0)  # the first two are orthogonal
    assert between == pytest.approx((2 + 1) / 2)  # opposite, and orthogonal


def test_samples_learned_to_the_last_bit_count_as_any_other():
    """Logits so far apart that the gradient is zero in any precision still have a direction."""
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(2000 * torch.eye(3))
    x = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
    y = torch.tensor([0, 0, 1, 2])
    within, between = class_distances(model, (x, y))
    assert within == pytest.approx(0.0, abs=1e-12)
    weaker = nn.Linear(3, 3, bias=False)
    assert 0 < between < 2
    with torch.no_grad():
        weaker.weight.copy_(10 * torch.eye(3))
    assert between == pytest.approx(class_distances(weaker, (x, y)).between, abs=0.02)


def test_embeddings_of_zeros_have_no_direction_without_bias():
    model = nn.Linear(2, 2, bias=False)
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert class_distances(model, (x, torch.tensor([0, 0, 1]))) == pytest.approx((1.0, 1.5))


def test_classes_with_one_sample_count_between(make, everyone, literal):
    model, (x, y) = make("sequential"), everyone()
    chosen = torch.tensor([0, 2, 9, 10])  # labels 2, 2, 1, 3
    assert class_distances(model, (x[chosen], y[chosen])) == pytest.approx(
        literal(model, x[chosen], y[chosen]), abs=1e-5
    )


@pytest.mark.parametrize("rows", [[0, 2], [0, 1], [0]])
def test_too_few_classes_or_samples_are_refused(rows, make, everyone):
    x, y = everyone()
    with pytest.raises(InputError, match="need two classes and two samples of one"):
        class_distances(make("linear"), (x[rows], y[rows]))


def test_a_single_output_is_refused():
    with pytest.raises(InputError, match="head has 1 output"):
        class_distances(nn.Linear(2, 1), (torch.rand(2, 2), torch.tensor([0, 0])))
