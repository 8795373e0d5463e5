"""Settings: one declaration, one normal form, errors that name the setting and the remedy."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmix._setting_docs import describe, settings_page
from gradmix.errors import InputError, UnknownNameError
from gradmix.settings import (
    DEFAULTS,
    GROUPS,
    PRESETS,
    REMOVED,
    ClassifierSettings,
    MemorySettings,
    RunSettings,
    TrainingSettings,
    changed_settings,
    check,
    check_classifier,
)

NAMES = [*RunSettings.model_fields, *ClassifierSettings.model_fields]


def test_every_setting_is_declared_in_one_group():
    declared = [name for group in GROUPS for name in group.__annotations__]
    assert len(declared) == len(set(declared))
    assert set(declared) == set(NAMES)


def test_every_setting_has_help_and_a_source():
    for group in GROUPS:
        for setting in describe(group).values():
            assert setting.help[0].isupper() or setting.help.startswith(
                ("natural", "auto", "α", "τ")
            )
            assert setting.help.endswith(".")
            assert setting.source in ("paper", "ours", "PyTorch", "Remix", "Rainbow Memory")


def test_the_page_is_current():
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    hint = "run python -m gradmix._setting_docs > docs/settings.md"
    assert page.read_text(encoding="utf-8") == settings_page(), hint


def test_the_page_names_every_setting_and_preset():
    page = settings_page()
    assert all(f"| `{name}` |" in page for name in NAMES)
    assert all(f"| {name} |" in page for name in PRESETS)


@pytest.mark.parametrize(
    ("name", "value", "normal"),
    [
        ("lr", 1, 1.0),
        ("lr", np.float32(0.5), 0.5),
        ("epochs", np.int64(3), 3),
        ("increments", [5, 5], (5, 5)),
        ("increments", 5, (5,)),
        ("increments", np.array([5, 5]), (5, 5)),
        ("transforms", "flip", ("flip",)),
        ("class_order", [1, 0], (1, 0)),
        ("class_order", "seed:3", "seed:3"),
        ("class_order", "3,1, 0,2", (3, 1, 0, 2)),
        ("transforms", "none", ()),
        ("transforms", ["none"], ()),
        ("options", {"beta": 1, "alpha": 0.5}, (("alpha", 0.5), ("beta", 1.0))),
        ("options", ["beta=1", "alpha=0.5"], (("alpha", 0.5), ("beta", 1.0))),
        ("exemplars_per_class", None, None),
        ("mix", np.str_("mixup"), "mixup"),
        ("seed", 2**63 - 1, 2**63 - 1),
    ],
)
def test_values_take_one_normal_form(name, value, normal):
    found = check(name, value)
    assert found == normal
    assert type(found) is type(normal)
    assert getattr(RunSettings(data="digits", **{name: value}), name) == normal


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", "20", "epochs is '20'; give a whole number"),
        ("epochs", True, "epochs is True; give a whole number"),
        ("epochs", 2.5, "epochs is 2.5; give a whole number"),
        ("epochs", None, "epochs is None; give a whole number"),
        ("epochs", 0, "epochs is 0; give 1 or more"),
        pytest.param(
            "epochs", 10**5000, "epochs is a value of type int; give 2147483648", id="huge"
        ),
        ("lr", "fast", "lr is 'fast'; give a number"),
        ("lr", 0, "lr is 0; give a number above 0"),
        ("lr", float("nan"), "lr is nan; give a finite number"),
        ("lr", float("inf"), "lr is inf; give a finite number of at most 1e30"),
        ("lr", 10**400, "give a finite number of at most 1e30"),
        ("momentum", 1, "momentum is 1; give a number below 1"),
        ("tau", 2, "tau is 2; give 1 or less"),
        ("threads", 5000, "threads is 5000; give 1024 or less"),
        ("increments", "2", "increments is '2'; give whole numbers"),
        ("increments", (), r"increments is \(\); give at least 1"),
        ("lr_steps", [0], r"lr_steps is \[0\]; give 1 or more"),
        ("transforms", 3, "transforms is 3; give names"),
        ("class_order", 2.5, "class_order is 2.5; give a name or whole numbers"),
        ("options", 3, "options is 3; give numbers by name"),
        ("options", ["alpha"], "give numbers by name, such as alpha=0.3"),
        ("options", ["alpha=much"], "give numbers by name"),
        ("options", ["alpha=0.1", "alpha=0.5"], "give each name once"),
        ("class_order", "3,x", "class_order is '3,x'; give natural, seed:1993, or classes such"),
        ("mix", 3, "mix is 3; give text"),
        ("device", "cpu\0", "give text"),
        ("pairing", "one-to-on", "unknown pairing 'one-to-on': did you mean 'one-to-one'"),
        ("pairing", ["x"], "unknown pairing"),
        ("head", None, "unknown head None"),
    ],
)
def test_errors_name_the_setting_the_value_and_the_remedy(name, value, message):
    with pytest.raises(InputError, match=message):
        check(name, value)
    with pytest.raises(InputError, match=message):
        RunSettings(data="digits", **{name: value})


def test_an_unknown_or_missing_setting():
    with pytest.raises(UnknownNameError, match="unknown setting 'epoch': did you mean 'epochs'"):
        check("epoch", 3)
    with pytest.raises(UnknownNameError, match="unknown setting 'epoch': did you mean 'epochs'"):
        TrainingSettings(epoch=3)
    with pytest.raises(InputError, match="data is missing; give a value"):
        RunSettings()


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
        st.complex_numbers(), st.builds(object),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(NAMES), ANYTHING)
def test_any_value_is_either_normal_or_an_input_error(name, value):
    problem = ""
    try:
        normal = check(name, value)
    except InputError as error:
        problem = str(error)
    assert not problem or name in problem
    assert len(problem) < 400
    if not problem and name not in ("mean", "std", "random_state"):
        assert check(name, normal) == normal


def test_groups_are_frozen_and_hashable():
    one, two = RunSettings(data="digits", lr=1), RunSettings(data="digits", lr=1.0)
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(ValueError, match="frozen"):
        one.lr = 2.0


def test_a_total_replaces_the_number_per_class():
    assert MemorySettings(memory_total=100).exemplars_per_class is None
    assert MemorySettings().exemplars_per_class == 32


def test_changed_settings_ignore_defaults_and_removed_settings_at_theirs():
    config = {**RunSettings(data="mnist", seed=3, mix="gradmix+").to_json(), **REMOVED}
    assert changed_settings(config) == {"data": "mnist", "seed": 3}
    assert changed_settings({"level": "sample", "future": 1}) == {"level": "sample", "future": 1}
    assert DEFAULTS["increments"] == [2]
    assert DEFAULTS["options"] == {}


def test_runs_mix_without_gradients_and_result_files_keep_their_names():
    assert RunSettings.model_fields["mix"].default == "balanced-remix"
    assert DEFAULTS["mix"] == "gradmix+"  # with which committed results were named
    assert changed_settings({"mix": "balanced-remix"}) == {"mix": "balanced-remix"}


def test_a_classifier_may_leave_settings_to_the_data():
    left = {"epochs": None, "lr": None, "threads": None, "options": None}
    left |= {"mix": "auto", "model": "auto", "transforms": "auto"}
    assert check_classifier(left) == left
    network = object()
    assert check_classifier({"model": network, "lr": 1}) == {"model": network, "lr": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 0, "epochs is 0; give 1 or more"),
        ("batch_size", None, "batch_size is None; give a whole number"),
        ("holdout_per_class", -1, "give 0 or more"),
        ("image_size", 4, "give 8 or more"),
        ("early_stopping", 1, "early_stopping is 1; give True or False"),
        ("validation_fraction", 0.7, "give 0.5 or less"),
        ("validation_fraction", 0, "give a number above 0"),
        ("colour", "red", "unknown setting 'colour'"),
    ],
)
def test_parameters_of_a_classifier_are_checked_by_the_same_declarations(name, value, message):
    with pytest.raises(InputError, match=message):
        check_classifier({name: value})


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(InputError, match=r"unknown schedule .*….*known are constant") as caught:
        check("schedule", ["x" * 500])
    assert len(str(caught.value)) < 300
