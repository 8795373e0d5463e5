"""Seeds as people write them."""

import pytest

from gradmix._setting_types import parse_seeds, seed_range
from gradmix.errors import InputError


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-b", "2.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(InputError, match="seeds has"):
        parse_seeds([text])


def test_an_empty_range_of_seeds():
    with pytest.raises(InputError, match=r"seeds has '4-2', a range .*; give 2-4"):
        parse_seeds(["4-2"])


def test_a_seed_given_twice_is_refused():
    with pytest.raises(InputError, match="seeds has 3 twice; give each seed once"):
        parse_seeds(["0-3", "3"])


def test_ranges_and_numbers_in_the_order_given():
    assert parse_seeds(["7", "0-2", 5]) == [7, 0, 1, 2, 5]


@pytest.mark.parametrize(
    ("seeds", "text"), [([0], "0"), ([0, 1], "0 1"), ([0, 1, 2], "0-2"), ([0, 1, 3], "0 1 3")]
)
def test_few_letters(seeds, text):
    assert seed_range(seeds) == text
    assert parse_seeds(text.split()) == seeds
