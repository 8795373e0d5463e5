"""Labels of a mix: Remix branch by branch, and targets that are distributions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmix.mixing import RECIPES
from gradmix.mixing.mixer import soft_targets
from gradmix.mixing.plan import KAPPA, remix

COUNTS = torch.tensor([30, 10, 11, 0, 300])


def shares_of(y, partner_y, lam, counts, tau=0.5):
    ratio = torch.tensor([lam], dtype=torch.float64)
    return remix(y[None], partner_y[None], ratio, counts, tau)[0]


def test_remix_has_the_values_of_its_authors():
    assert KAPPA == 3.0
    assert RECIPES["remix"].tau == 0.5


@pytest.mark.parametrize(
    ("own", "other", "lam", "share"),
    [
        (4, 1, 0.74, 0.0),
        (4, 1, 0.76, 0.76),
        (1, 4, 0.26, 1.0),
        (1, 4, 0.24, 0.24),
        (1, 2, 0.6, 0.6),
    ],
)
def test_a_larger_tau_favours_the_rarer_class_longer(own, other, lam, share):
    shares = shares_of(torch.tensor([own]), torch.tensor([other]), lam, COUNTS, tau=0.75)
    assert shares.tolist() == pytest.approx([share])


@pytest.mark.parametrize(
    ("own", "other", "lam", "share"),
    [
        pytest.param(0, 1, 0.4, 0.0, id="own exactly κ times the other, small λ"),
        pytest.param(0, 1, 0.5, 0.5, id="own exactly κ times the other, λ at τ"),
        pytest.param(0, 1, 0.6, 0.6, id="own exactly κ times the other, large λ"),
        pytest.param(1, 0, 0.6, 1.0, id="other exactly κ times the own, large λ"),
        pytest.param(1, 0, 0.5, 0.5, id="other exactly κ times the own, 1 − λ at τ"),
        pytest.param(1, 0, 0.4, 0.4, id="other exactly κ times the own, small λ"),
        pytest.param(0, 2, 0.1, 0.1, id="own just under κ times the other"),
        pytest.param(2, 0, 0.9, 0.9, id="other just under κ times the own"),
        pytest.param(4, 1, 0.49, 0.0, id="own far above κ"),
        pytest.param(1, 4, 0.51, 1.0, id="other far above κ"),
        pytest.param(1, 1, 0.1, 0.1, id="a class with itself, small λ"),
        pytest.param(4, 4, 0.9, 0.9, id="a class with itself, large λ"),
        pytest.param(0, 1, 0.0, 0.0, id="λ of 0"),
        pytest.param(0, 1, 1.0, 1.0, id="λ of 1"),
    ],
)
def test_remix_by_hand(own, other, lam, share):
    shares = shares_of(torch.tensor([own]), torch.tensor([other]), lam, COUNTS)
    assert shares.tolist() == pytest.approx([share])
    assert shares.dtype == torch.float32


def test_every_batch_has_shares_of_its_own_ratio():
    y = torch.tensor([[0, 4, 1, 2], [1, 1, 0, 2], [0, 4, 1, 2], [4, 0, 4, 1]])
    partner_y = torch.tensor([[1, 1, 4, 2], [0, 4, 2, 1], [1, 1, 4, 2], [1, 1, 2, 4]])
    ratios = [0.1, 0.6, 0.9, 0.5]
    lam = torch.tensor(ratios, dtype=torch.float64)
    together = remix(y, partner_y, lam, COUNTS, 0.5)
    expected = [[0, 0, 0.1, 0.1], [1, 1, 0.6, 0.6], [0.9, 0.9, 1, 0.9], [0.5] * 4]
    torch.testing.assert_close(together, torch.tensor(expected))
    for row, shares in enumerate(together):
        assert torch.equal(shares, shares_of(y[row], partner_y[row], ratios[row], COUNTS))


@pytest.mark.parametrize("distance", [1e-12, -1e-12])
def test_the_ratio_and_tau_are_compared_in_double_precision(distance):
    """Both sides of τ are the same number in float32."""
    (share,) = shares_of(torch.tensor([4]), torch.tensor([1]), 0.75 + distance, COUNTS, tau=0.75)
    assert share == (0.75 if distance > 0 else 0.0)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(0, 64).map(lambda k: k / 64),  # so that 1 − λ is exact
    st.lists(st.integers(1, 100), min_size=5, max_size=5),
)
def test_remix_is_fair_to_both_sides(pairs, lam, counts):
    """Seen from the partner, with 1 − λ, the shares are the rest."""
    y, partner_y = (torch.tensor(side) for side in zip(*pairs, strict=True))
    counts = torch.tensor(counts)
    there = shares_of(y, partner_y, lam, counts)
    back = shares_of(partner_y, y, 1 - lam, counts)
    torch.testing.assert_close(there + back, torch.ones(len(y)))


def test_targets_by_hand():
    shares = torch.full((3,), 0.75)
    targets = soft_targets(torch.tensor([0, 2, 1]), torch.tensor([3, 0, 1]), shares, 5)
    assert targets.tolist() == [[0.75, 0, 0, 0.25, 0], [0.25, 0, 0.75, 0, 0], [0, 1, 0, 0, 0]]
    assert targets.dtype == torch.float32


def test_targets_with_a_share_for_every_row():
    shares = torch.tensor([0.0, 1.0, 0.25])
    targets = soft_targets(torch.tensor([0, 0, 0]), torch.tensor([1, 1, 0]), shares, 2)
    assert targets.tolist() == [[0, 1], [1, 0], [1, 0]]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.floats(0, 1)), min_size=1, max_size=8
    )
)
def test_targets_are_distributions(mixes):
    y, partner_y, shares = (torch.tensor(part) for part in zip(*mixes, strict=True))
    targets = soft_targets(y, partner_y, shares, 7)
    assert targets.shape == (len(y), 7)
    assert bool((targets >= 0).all())
    torch.testing.assert_close(targets.sum(1), torch.ones(len(y)))
    for row, (own, other, lam) in enumerate(mixes):
        assert targets[row, own].item() == pytest.approx(1 if own == other else lam, abs=1e-6)


def test_a_ratio_of_one_gives_the_own_label_and_of_zero_the_partners():
    y, partner_y = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 2])
    assert torch.equal(soft_targets(y, partner_y, torch.ones(3), 4), torch.eye(4)[y])
    assert torch.equal(soft_targets(y, partner_y, torch.zeros(3), 4), torch.eye(4)[partner_y])
