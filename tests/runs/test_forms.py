"""One form for every value of a setting."""

import numpy as np
import pytest

from gradmix.errors import InputError
from gradmix.runs.config import config_for


@pytest.mark.parametrize(
    ("setting", "given", "kept"),
    [
        ("lr", 1, 1.0),
        ("epochs", np.int64(3), 3),
        ("alpha", np.float64(0.5), 0.5),
        ("increments", [5, 5], (5, 5)),
        ("increments", 5, (5,)),
        ("transforms", "flip", ("flip",)),
        ("class_order", [1, 0], (1, 0)),
        ("class_order", "seed:3", "seed:3"),
        ("analyses", ["class-distance"], ("class-distance",)),
    ],
)
def test_what_is_meant(setting, given, kept):
    value = getattr(config_for("digits", **{setting: given}), setting)
    assert value == kept
    assert type(value) is type(kept)


def test_options_in_the_order_of_their_names():
    options = {"beta": 1, "alpha": 0.5}
    config = config_for("digits", method="der++", options=options)
    assert config.options == (("alpha", 0.5), ("beta", 1.0))
    assert config == config_for("digits", method="der++", options=list(options.items()))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("epochs", "20", "epochs is '20'; give a whole number"),
        ("epochs", 2.5, "epochs is 2.5; give a whole number"),
        ("epochs", True, "epochs is True; give a whole number"),
        ("lr", "fast", "lr is 'fast'; give a number"),
        ("mix", 3, "mix is 3; give text"),
        ("increments", "2", "increments is '2'; give whole numbers"),
        ("transforms", 3, "transforms is 3; give names"),
        ("class_order", 2.5, "class_order is 2.5; give a name or whole numbers"),
        ("options", 3, "options is 3; give numbers by name"),
        ("options", ["abc"], "options is .*; give numbers by name"),
    ],
)
def test_what_cannot_be_meant(setting, value, words):
    with pytest.raises(InputError, match=words):
        config_for("digits", **{setting: value})


def test_data_is_a_name():
    with pytest.raises(InputError, match="data is 3; give text"):
        config_for(3)
