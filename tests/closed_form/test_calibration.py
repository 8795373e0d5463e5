"""The temperature and the calibration error."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmix.closed_form import expected_calibration_error, fit_temperature
from gradmix.errors import InputError


def drawn(temperature, samples=4000):
    """Return scores whose labels are drawn from softmax(scores / temperature)."""
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(samples, 5, generator=generator)
    labels = (scores / temperature).softmax(1).multinomial(1, generator=generator).flatten()
    return scores, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_that_drew_the_labels_is_found(temperature):
    scores, labels = drawn(temperature)
    assert fit_temperature(scores, labels) == pytest.approx(temperature, rel=0.15)


@given(scale=st.floats(1e-3, 1e3))
def test_scaling_the_scores_scales_the_temperature(scale):
    scores, labels = drawn(2.0, 200)
    expected = scale * fit_temperature(scores, labels)
    assert fit_temperature(scale * scores, labels) == pytest.approx(expected, rel=1e-3)


def test_a_fitted_temperature_lowers_the_calibration_error():
    scores, labels = drawn(4.0)
    fitted = scores / fit_temperature(scores, labels)
    error = expected_calibration_error(fitted.softmax(1), labels)
    assert error < 0.05 < expected_calibration_error(scores.softmax(1), labels)


def test_the_calibration_error_of_hand_computed_bins():
    probabilities = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65]])
    found = expected_calibration_error(probabilities, torch.tensor([0, 1, 1]))
    assert found == pytest.approx((abs(1.9 - 1) + abs(0.65 - 1)) / 3, abs=1e-6)


def test_equal_scores_need_no_temperature():
    assert fit_temperature(torch.ones(3, 2), torch.tensor([0, 1, 1])) == 1.0


@pytest.mark.parametrize(
    ("scores", "labels", "match"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "0 rows"),
        (torch.zeros(2, 2), torch.tensor([0]), "labels 1"),
        (torch.zeros(2, 2), torch.tensor([0, 2]), "0 to 1"),
    ],
)
def test_unusable_samples_are_refused(scores, labels, match):
    with pytest.raises(InputError, match=match):
        fit_temperature(scores, labels)
