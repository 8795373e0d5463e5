"""Blends: by hand, at the ends of λ, and hidden states against an explicit forward pass."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.errors import InputError
from gradmix.mixing.mixer import cutmix, linear, manifold
from gradmix.mixing.plan import Box, draw_box
from gradmix.models import MLP


class Centre:
    """A generator that puts the box where the test wants it."""

    def __init__(self, row, column):
        self.draws = iter((row, column))
        self.limits = []

    def integers(self, limit):
        self.limits.append(limit)
        return next(self.draws)


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def boxed(x, partners, lam, rng):
    """CutMix with a box drawn for these images; with it the share that is left."""
    box, left = draw_box(lam, tuple(x.shape[1:]), rng)
    return cutmix(x, partners, box), left


def test_linear_by_hand():
    x, partners = torch.tensor([[1.0, 2.0], [0.0, 8.0]]), torch.tensor([[5.0, 2.0], [4.0, 0.0]])
    assert linear(x, partners, 0.75).tolist() == [[2, 2], [1, 6]]


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1), st.integers(0, 99))
def test_linear_is_the_formula_and_symmetric(lam, seed):
    x, partners = random(3, 2, 2, 2, seed=seed), random(3, 2, 2, 2, seed=seed + 1)
    mixed = linear(x, partners.clone(), lam)  # the result takes the partners' place
    torch.testing.assert_close(mixed, lam * x + (1 - lam) * partners)
    torch.testing.assert_close(mixed, linear(partners, x.clone(), 1 - lam))


def test_linear_at_the_ends_is_exact():
    x, partners = random(3, 4), 1e6 * random(3, 4, seed=1)
    assert torch.equal(linear(x, partners.clone(), 1.0), x)
    assert torch.equal(linear(x, partners.clone(), 0.0), partners)


@pytest.mark.parametrize(
    ("row", "column", "rows", "columns"),
    [
        (4, 6, range(2, 6), range(3, 9)),  # in the middle
        (0, 6, range(0, 2), range(3, 9)),  # clipped at the top
        (7, 11, range(5, 8), range(8, 12)),  # clipped at the bottom right
        (4, 1, range(2, 6), range(0, 4)),  # clipped at the left
    ],
)
def test_cutmix_box_by_hand(row, column, rows, columns):
    """λ = 0.75 on 8×12 pixels: half of each side, 4×6, less what is outside."""
    x, partners = torch.zeros(2, 3, 8, 12), torch.ones(2, 3, 8, 12)
    rng = Centre(row, column)
    mixed, left = boxed(x, partners, 0.75, rng)
    assert rng.limits == [8, 12]
    box, _ = draw_box(0.75, (3, 8, 12), Centre(row, column))
    assert box == Box(rows.start, rows.stop, columns.start, columns.stop)
    expected = torch.zeros(8, 12)
    for i in rows:
        for j in columns:
            expected[i, j] = 1
    assert torch.equal(mixed, expected.expand(2, 3, 8, 12))
    assert left == pytest.approx(1 - len(rows) * len(columns) / 96)


def test_cutmix_on_odd_sides_loses_the_odd_pixel():
    """λ = 0 on 5×7: sides 5 and 7, of which 2·2 and 2·3 are taken around the centre."""
    mixed, left = boxed(torch.zeros(1, 1, 5, 7), torch.ones(1, 1, 5, 7), 0.0, Centre(2, 3))
    assert torch.equal(mixed[0, 0, :4, :6], torch.ones(4, 6))
    assert mixed.sum().item() == 24
    assert left == pytest.approx(1 - 24 / 35)


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 1), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_cutmix_keeps_the_share_it_says(lam, height, width, seed):
    x = torch.zeros(2, 3, height, width)
    mixed, left = boxed(x, torch.ones_like(x), lam, np.random.default_rng(seed))
    kept = (mixed == 0).double().mean(dim=(1, 2, 3))
    assert kept.tolist() == pytest.approx([left] * 2)
    assert left >= lam - 1e-6  # truncation and clipping only ever shrink the box
    assert x.sum() == 0  # the batch itself is not written to


def test_cutmix_centres_reach_every_pixel():
    rng, seen = np.random.default_rng(0), torch.zeros(4, 4)
    for _ in range(300):
        seen += boxed(torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4), 0.75, rng)[0][0, 0]
    assert bool((seen > 0).all())


def test_cutmix_pastes_each_row_from_its_partner_at_the_same_place():
    x, partners = random(3, 1, 6, 6), random(3, 1, 6, 6, seed=1)
    mixed, _ = boxed(x, partners, 0.5, np.random.default_rng(0))
    pasted = mixed != x
    assert torch.equal(mixed, torch.where(pasted, partners, x))
    assert torch.equal(pasted[0], pasted[1])
    assert 0 < int(pasted[0].sum()) < 36


def test_cutmix_with_a_ratio_of_one_returns_the_batch():
    x = random(2, 1, 4, 4)
    mixed, left = boxed(x, random(2, 1, 4, 4, seed=1), 1.0, np.random.default_rng(0))
    assert torch.equal(mixed, x)
    assert left == 1


@pytest.mark.parametrize("shape", [(8,), (8, 8)])
def test_cutmix_needs_images(shape):
    with pytest.raises(InputError, match=r"cutmix needs images \(N, C, H, W\)"):
        draw_box(0.5, shape, np.random.default_rng(0))


def states(model, x, upto):
    h = x.flatten(1)
    for layer in [*model.shared, *model.special][:upto]:
        h = layer(h)
    return h


def rest(model, h, after):
    for layer in [*model.shared, *model.special][after:]:
        h = layer(h)
    return model.head(h)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_manifold_in_batch_is_a_mix_of_hidden_states(at):
    model, x, rows, lam = MLP(6, 4, (5, 3)), random(4, 6), torch.tensor([2, 0, 1, 3]), 0.3
    h = states(model, x, at)
    expected = rest(model, lam * h + (1 - lam) * h[rows], at)
    torch.testing.assert_close(model(x, manifold(lam, rows), at), expected)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_manifold_from_outside_is_the_same_with_the_partners_own_forward_pass(at):
    model, x, partners, lam = MLP(6, 4, (5, 3)), random(4, 6), random(4, 6, seed=1), 0.3
    h = lam * states(model, x, at) + (1 - lam) * states(model, partners, at)
    logits = model(torch.cat([x, partners]), manifold(lam), at)
    assert logits.shape == (4, 4)
    torch.testing.assert_close(logits, rest(model, h, at))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_manifold_both_ways_agree_and_a_ratio_of_one_is_no_mix(at):
    model, x, rows = MLP(6, 4, (5, 3)), random(4, 6), torch.tensor([2, 0, 1, 3])
    inside = model(x, manifold(0.3, rows), at)
    outside = model(torch.cat([x, x[rows]]), manifold(0.3), at)
    torch.testing.assert_close(inside, outside)
    torch.testing.assert_close(model(x, manifold(1.0, rows), at), model(x))


def test_manifold_at_the_input_is_mixup():
    x, rows = random(4, 6), torch.tensor([2, 0, 1, 3])
    mixed = manifold(0.3, rows)(x)
    torch.testing.assert_close(mixed, linear(x, x[rows], 0.3))
