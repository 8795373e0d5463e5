"""Options of methods: defaults, and errors that name what is wrong."""

import math

import pytest

from gradmix.errors import InputError, UnknownNameError
from gradmix.methods import METHODS, find_method

DEFAULTS = {
    "er-ridge": {"features": 512.0},
    "mir": {"candidates": 2.0},
    "aser": {"neighbours": 5.0, "candidates": 2.0},
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
    "tagfex": {"auxiliary": 2.0, "contrast": 1.0, "distill": 2.0, "transfer": 1.0, "align": 0.0},
    "scr": {"temperature": 0.07, "crop": 0.2},
    "dytox": {"divergence": 0.1, "tuning": 20 / 500, "tuning_lr": 0.1},
    "ridge": {"features": 0.0},
    "der-expandable": {"auxiliary": 1.0, "align": 0.0, "classifier": 1.0, "temperature": 5.0},
    "lwf": {"distill": 1.0, "temperature": 2.0},
    "ewc": {"strength": 90.0, "decay": 1.0, "samples": 500.0},
    "wa": {"temperature": 2.0},
    "bic": {"temperature": 2.0, "holdout": 0.1},
    "gdumb": {"passes": 6.4},
    "drc": {
        "adaptation": 0.35,
        "branches": 0.2,
        "distill_old": 4.0,
        "distill_new": 1.0,
        "temperature": 2.0,
        "prior": 1.2,
    },
    "memo": {"auxiliary": 1.0, "train_shared": 1.0, "align": 0.0},
}


def options(method, **given):
    return find_method(method).read_options(given)


@pytest.mark.parametrize("method", METHODS)
def test_defaults(method, make_training):
    assert dict(options(method)) == DEFAULTS.get(method, {})
    network = "mlp" if METHODS[method].build.trains else "linear"
    assert make_training(method, network=network).method.options == options(method)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_names_are_refused(method):
    kind = UnknownNameError if method in DEFAULTS else InputError
    with pytest.raises(kind, match="'candidate'") as caught:
        options(method, candidate=2.0)
    assert ("this method has no options" in str(caught.value)) == (method not in DEFAULTS)
    assert all(name in str(caught.value) for name in DEFAULTS.get(method, {}))
    assert ("did you mean 'candidates'" in str(caught.value)) == (method in ("mir", "aser"))


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("mir", "candidates", 0.5),
        ("mir", "candidates", math.inf),
        ("aser", "candidates", 0.5),
        ("aser", "neighbours", 0.0),
        ("aser", "neighbours", 2.5),
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
        ("drc", "adaptation", 0.0),
        ("drc", "adaptation", 1.0),
        ("drc", "branches", 1.5),
        ("drc", "temperature", 0.0),
        ("drc", "prior", -1.0),
        ("der-expandable", "classifier", -1.0),
        ("der-expandable", "temperature", 0.0),
        ("tagfex", "contrast", -1.0),
        ("tagfex", "align", 0.5),
        ("scr", "temperature", 0.0),
        ("scr", "crop", 0.0),
        ("scr", "crop", 1.5),
        ("dytox", "divergence", -1.0),
        ("dytox", "tuning", 0.0),
        ("dytox", "tuning_lr", 0.0),
        ("er-ridge", "features", 0.0),
        ("er-ridge", "features", 20_001.0),
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
