import pytest
import torch

from gradmix.data.datasets import channel_statistics, complete_statistics
from gradmix.errors import InputError

ROWS = torch.tensor([[1.0, 5.0], [3.0, 5.0]])


def test_statistics_of_bytes_equal_those_of_floats():
    x = torch.randint(256, (600, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator())
    mean, std = channel_statistics(x)
    assert mean == pytest.approx(x.double().mean((0, 2, 3)).tolist())
    assert std == pytest.approx(x.double().std((0, 2, 3), correction=0).tolist())


def test_only_missing_statistics_are_computed_and_from_all_parts():
    assert complete_statistics(None, [9.0, 9.0], ROWS) == ((2.0, 5.0), (9.0, 9.0))
    assert complete_statistics([0.0, 0.0], None, ROWS) == ((0.0, 0.0), (1.0, 1.0))
    assert complete_statistics(None, None, ROWS[:1], ROWS[1:]) == ((2.0, 5.0), (1.0, 1.0))
    assert complete_statistics([0.0] * 2, [1.0] * 2, Shaped())[1] == (1.0, 1.0)


class Shaped:
    """Has a shape and no values: given statistics read nothing else."""

    shape = (3, 2)


@pytest.mark.parametrize(("mean", "std"), [([0.0], None), ([0.0, 0.0], [1.0, 0.0])])
def test_statistics_that_do_not_fit_are_refused(mean, std):
    with pytest.raises(InputError, match=r"mean is|std is"):
        complete_statistics(mean, std, ROWS)
