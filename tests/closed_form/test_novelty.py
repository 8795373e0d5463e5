"""Novelty and its threshold."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.closed_form.calibration import energy, fit_threshold
from gradmix.errors import InputError


def test_energy_of_hand_computed_scores():
    scores = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([-2.0, -3.0]).double() * torch.tensor(2.0).log()
    found = energy(scores * torch.tensor(2.0).log(), 1.0)
    torch.testing.assert_close(found, torch.stack([expected[0] / 2, expected[1] * 2 / 3]))


def test_a_low_temperature_gives_the_highest_score():
    scores = torch.tensor([[0.2, 0.9, 0.4]])
    torch.testing.assert_close(energy(scores, 1e-3), torch.tensor([-0.9]))


@given(samples=st.integers(19, 300), rate=st.sampled_from([0.05, 0.1, 0.2, 0.5]))
def test_the_threshold_is_the_conformal_quantile(samples, rate):
    """Of n + 1 exchangeable samples, at most a share `rate` lies above the threshold."""
    novelty = torch.randperm(samples, generator=torch.Generator().manual_seed(samples)).float()
    above = int((novelty > fit_threshold(novelty, rate)).sum())
    assert (above + 1) / (samples + 1) <= rate + 1e-9
    assert (above + 2) / (samples + 1) > rate - 1e-9


def test_new_samples_raise_the_stated_number_of_alarms():
    generator = torch.Generator().manual_seed(0)
    threshold = fit_threshold(torch.randn(2000, generator=generator), 0.1)
    alarms = (torch.randn(20000, generator=generator) > threshold).float().mean()
    assert float(alarms) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 2.0])
def test_rates_outside_0_and_1_are_refused(rate):
    with pytest.raises(InputError, match="false_alarm_rate is"):
        fit_threshold(torch.arange(100.0), rate)


def test_too_few_samples_are_refused_with_the_number_needed():
    with pytest.raises(InputError, match=r"are 18 held-out samples.*needs at least 19"):
        fit_threshold(torch.arange(18.0), 0.05)
    assert fit_threshold(torch.arange(19.0), 0.05) == 18.0


@pytest.mark.parametrize("count", range(1, 19))
def test_the_rate_that_the_message_allows_is_accepted(count):
    with pytest.raises(InputError) as caught:
        fit_threshold(torch.arange(float(count)), 0.05)
    allowed = float(str(caught.value).rsplit(" ", 1)[1])
    assert fit_threshold(torch.arange(float(count)), allowed) == count - 1


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(InputError, match="temperature is 0"):
        energy(torch.zeros(1, 2), 0.0)
