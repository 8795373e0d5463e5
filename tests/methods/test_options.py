"""Options of methods: defaults, and errors that name what is wrong."""

import math

import pytest

from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import METHODS, find_method
from gradmix.methods.base import read_options

DEFAULTS = {
    "mir": {"candidates": 2.0},
    "der": {"alpha": 0.5, "beta": 0.5},
    "der++": {"alpha": 0.5, "beta": 0.5},
    "foster": {
        "beta1": 0.97,
        "beta2": 0.97,
        "distill": 1.0,
        "temperature": 2.0,
        "compression": 130 / 170,
        "mix_boosting": 1.0,
        "mix_compression": 0.0,
    },
    "ridge": {"features": 0.0},
    "memo": {"auxiliary": 1.0, "train_shared": 1.0, "align": 0.0},
}


def options(method, **given):
    return read_options(find_method(method).options_type, given)


@pytest.mark.parametrize("method", METHODS)
def test_defaults(method, make_training):
    assert dict(options(method)) == DEFAULTS.get(method, {})
    network = "mlp" if METHODS[method].build.trains else "linear"
    assert make_training(method, network=network).method.options == options(method)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_names_are_refused(method):
    with pytest.raises(UnknownNameError, match="option 'candidate'") as caught:
        options(method, candidate=2.0)
    known = DEFAULTS.get(method, {"(this method has none)": 0})
    assert all(name in str(caught.value) for name in known)
    assert ("did you mean 'candidates'" in str(caught.value)) == (method == "mir")


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("mir", "candidates", 0.5),
        ("mir", "candidates", math.inf),
        ("der", "alpha", -0.1),
        ("der", "alpha", math.inf),
        ("der++", "beta", -1),
        ("foster", "beta1", 1.0),
        ("foster", "beta2", -0.5),
        ("foster", "distill", -1.0),
        ("foster", "temperature", 0.0),
        ("foster", "compression", -1.0),
        ("foster", "compression", math.inf),
        ("foster", "mix_boosting", 0.5),
        ("foster", "mix_compression", 2.0),
        ("memo", "auxiliary", -1.0),
        ("memo", "train_shared", 0.5),
        ("memo", "align", 2.0),
        ("ridge", "features", -1.0),
        ("ridge", "features", 0.5),
        ("ridge", "features", 20_001.0),
        *[
            (method, name, value)
            for method, known in DEFAULTS.items()
            for name in known
            for value in (math.nan, "much", None, True)
        ],
    ],
)
def test_bad_values_name_themselves(method, name, value):
    with pytest.raises(InputError, match=f"{name} is {value!r}"):
        options(method, **{name: value})


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("mir", {"candidates": 1}),
        ("der", {"alpha": 0.0}),
        ("der++", {"alpha": 2.0, "beta": 0.0}),
        ("foster", {"beta1": 0.0, "distill": 0.0, "temperature": 1.0, "compression": 3.0}),
        ("memo", {"auxiliary": 0.0, "train_shared": 0.0, "align": 0}),
    ],
)
def test_good_values_are_taken(method, given):
    assert dict(options(method, **given)) == DEFAULTS[method] | given
