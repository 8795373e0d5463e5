"""Result files: of this version, one for every configuration and protocol."""

import json
from dataclasses import asdict

import pytest
from result_cases import example

from gradmix.errors import ResultError
from gradmix.runs.config import RunConfig, config_for
from gradmix.runs.results import PROTOCOL_VERSION, load_result, result_name
from gradmix.runs.store import ResultStore


def test_every_configuration_has_a_name_of_its_own():
    names = {
        result_name(config_for("digits", **changes).to_json())
        for changes in [{}, {"seed": 1}, {"lr": 0.5}, {"mix": "none"}, {"increments": (5, 5)}]
    }
    assert len(names) == 5
    free = result_name(config_for("digits", mix="gradient × cutmix × remix").to_json())
    assert free.startswith("digits-er-gradient___cutmix___remix-seed0-")
    assert free.isascii()


def test_names_do_not_outgrow_the_file_system():
    one, two = (
        result_name(config_for(f"folder:{'x' * 300}", seed=seed).to_json()) for seed in (0, 1)
    )
    assert len(one) < 200
    assert one != two


def test_a_setting_added_later_leaves_the_names_of_older_results():
    config = config_for("digits", seed=3).to_json()
    younger = {name: value for name, value in config.items() if name != "analyses"}
    assert result_name(config) == result_name(younger)
    assert result_name({**config, "analyses": ["some"]}) != result_name(config)


def test_the_name_is_of_what_differs_from_the_defaults_and_the_protocol():
    # sha256 of {"config": {"data": "mnist"}, "protocol_version": 1}
    assert (
        result_name(RunConfig("mnist").to_json(), 1) == "mnist-er-gradmix+-seed0-b25288102bb0.json"
    )
    assert result_name(RunConfig("mnist").to_json(), 2) != result_name(
        RunConfig("mnist").to_json(), 1
    )


def test_equal_settings_in_other_words_have_one_name():
    one = config_for("digits", lr=1, increments=[5, 5], options={})
    two = config_for("digits", lr=1.0, increments=(5, 5))
    assert one == two
    assert result_name(one.to_json()) == result_name(two.to_json())


def test_damaged_files_are_refused(tmp_path):
    path = ResultStore(tmp_path).create().save(example())
    whole = path.read_text()
    content = json.loads(whole)
    for text, message in [
        (whole[:100], "no result file"),
        (json.dumps({**content, "format": "x"}), "not of the format"),
        (json.dumps({**content, "schema_version": 0}), "version 0"),
        (json.dumps({k: v for k, v in content.items() if k != "accuracy"}), "accuracy"),
        (json.dumps({**content, "metrics": {"x": float("nan")}}), "it has NaN, which is no number"),
        (json.dumps({**content, "metrics": None}), "damaged: metrics is no dict"),
        (json.dumps({**content, "accuracy": {}}), "damaged: accuracy is no list"),
        (json.dumps({**content, "config": {"data": "digits"}}), "damaged: config has no method"),
    ]:
        path.write_text(text)
        with pytest.raises(ResultError, match=message):
            load_result(path)
    with pytest.raises(ResultError, match="no result file"):
        load_result(tmp_path / "absent.json")


def test_the_file_has_the_documented_fields(tmp_path):
    content = json.loads(ResultStore(tmp_path).create().save(example()).read_text())
    assert content == asdict(example())
    assert (content["schema_version"], content["protocol_version"]) == (2, PROTOCOL_VERSION)
    assert content["analysis"] == {}
