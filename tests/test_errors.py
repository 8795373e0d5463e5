"""Errors: whose children they are, and that a wrong name gets a useful answer."""

import pytest

import gradmix
from gradmix.errors import (
    CorruptFileError,
    DataNotFoundError,
    GradMixError,
    InputError,
    ResultError,
    UnknownNameError,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InputError, ValueError),
        (UnknownNameError, InputError),
        (DataNotFoundError, FileNotFoundError),
        (CorruptFileError, OSError),
        (ResultError, OSError),
    ],
)
def test_each_is_ours_and_what_callers_already_catch(error, builtin):
    assert issubclass(error, GradMixError)
    assert issubclass(error, builtin)


def test_our_errors_do_not_catch_others():
    assert not issubclass(ValueError, GradMixError)
    assert not issubclass(OSError, GradMixError)


def test_unknown_name_suggests_the_nearest_and_lists_all_sorted():
    error = UnknownNameError("mix", "mixp", iter(["remix", "mixup", "cutmix"]))
    assert str(error) == (
        "unknown mix 'mixp': did you mean 'mixup'? known are cutmix, mixup, remix"
    )


def test_unknown_name_without_a_near_one_suggests_none():
    assert str(UnknownNameError("model", "zzz", ["mlp"])) == "unknown model 'zzz': known are mlp"


@pytest.mark.parametrize("name", [None, 3, ["mlp"]])
def test_unknown_name_need_not_be_text(name):
    assert repr(name) in str(UnknownNameError("model", name, ["mlp"]))


def test_public_names_are_the_same_classes():
    assert gradmix.InputError is InputError
    assert gradmix.GradMixError is GradMixError
    with pytest.raises(AttributeError, match="nonsense"):
        gradmix.nonsense  # noqa: B018
