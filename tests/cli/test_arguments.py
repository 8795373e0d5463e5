"""Arguments that the command line takes apart itself."""

import pytest

from gradmix.cli.arguments import parse_class_order, parse_options, parse_transforms
from gradmix.errors import InputError


def test_class_orders():
    assert parse_class_order("3,1, 0,2") == (3, 1, 0, 2)
    assert parse_class_order("natural") == "natural"
    assert parse_class_order(None) is None


def test_options_are_numbers_by_name():
    assert parse_options(None) is None
    assert parse_options(["beta=2", "alpha=0.5"]) == (("alpha", 0.5), ("beta", 2.0))


@pytest.mark.parametrize("text", ["alpha", "alpha=", "alpha=much", "=1x"])
def test_options_that_are_none(text):
    with pytest.raises(InputError, match="option is"):
        parse_options([text])


def test_an_option_given_twice_is_refused():
    with pytest.raises(InputError, match=r"option alpha is given twice, 0\.1 and 0\.5"):
        parse_options(["alpha=0.1", "beta=1", "alpha=0.5"])


def test_transforms():
    assert parse_transforms(None) is None
    assert parse_transforms(["none"]) == ()
    assert parse_transforms(["crop", "flip"]) == ("crop", "flip")
