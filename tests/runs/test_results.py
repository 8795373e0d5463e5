"""Result files: of this version, one for every configuration and protocol."""

import copy
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gradmix.diagnostics import ANALYSES, ApproximationError, ClassDistances, PairAgreement
from gradmix.errors import FileError
from gradmix.runs._schemas import MEASUREMENTS
from gradmix.runs.config import RunConfig, config_for
from gradmix.runs.results import load_result, protocol_version, result_name
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
    # "gradmix+" is not the default of runs, but it was when the first results were named.
    plus = RunConfig(data="mnist", mix="gradmix+").to_json()
    assert result_name(plus, 1) == "mnist-er-gradmix+-seed0-b25288102bb0.json"
    default = result_name(RunConfig(data="mnist").to_json())
    assert default.startswith("mnist-er-balanced-remix-seed0-")
    assert default.split("-")[-1] != "b25288102bb0.json"
    assert result_name(RunConfig(data="mnist").to_json(), 2) != result_name(
        RunConfig(data="mnist").to_json(), 1
    )


def test_equal_settings_in_other_words_have_one_name():
    one = config_for("digits", lr=1, increments=[5, 5], options={})
    two = config_for("digits", lr=1.0, increments=(5, 5))
    assert one == two
    assert result_name(one.to_json()) == result_name(two.to_json())


def change(content, path, value):
    """Return a copy of nested content with the value at a path like "tasks.0.train" replaced."""
    content = copy.deepcopy(content)
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    inner = content
    for part in parents:
        inner = inner[part]
    if value is MISSING:
        del inner[last]
    else:
        inner[last] = value
    return content


MISSING = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "x", "does not have the format 'gradmix-result'"),
        ("schema_version", 0, "has version 0 of the result format"),
        ("accuracy", MISSING, "accuracy: field required"),
        ("colour", "red", "colour: extra inputs are not permitted"),
        ("metrics", None, "metrics: input should be a valid dictionary"),
        ("accuracy", {}, "accuracy: input should be a valid list"),
        ("accuracy.0.0", 1.5, "accuracy.0.0: input should be less than or equal to 1"),
        ("accuracy.0", [0.5], "accuracy: has 1 entries, not 2"),
        ("accuracy.0.0", 0.25, "metrics.average_accuracy: is 0.5, but the accuracies give"),
        ("initial_accuracy", [0.5], "initial_accuracy: has 1 entries, not 2"),
        ("metrics.average_accuracy", 0.6, "is 0.6, but the accuracies give 0.5"),
        ("metrics.average_accuracy", "0.5", "metrics.average_accuracy: input should be a valid"),
        ("metrics.final_accuracy", MISSING, "metrics: final_accuracy is missing"),
        ("metrics.forward_transfer", 0.7, "metrics.forward_transfer: is 0.7"),
        ("class_accuracy.1", [1.0], "class_accuracy: has 1 entries, not 2"),
        ("class_names", ["a"], "class_order: has 2 entries, not 1"),
        ("pair_counts.1.0", [1], "pair_counts: has 1 entries, not 2"),
        ("pair_counts.0.0.0", -1, "pair_counts.0.0.0: input should be greater"),
        ("pair_counts.0.0.0", True, "pair_counts.0.0.0: input should be a valid integer"),
        ("tasks.0.classes", [1], "tasks: the classes are not those of the 2 class_names"),
        ("tasks.0.train", MISSING, "tasks.0.train: field required"),
        ("tasks", [], "tasks: list should have at least 1 item"),
        ("epochs.0.task", 2, "epochs.task: is 2, but there are 2 tasks"),
        ("epochs.0.loss", [0.1, 0.2], "epochs.negative_rate: has 1 entries, not 2"),
        ("seconds.total", 0.0, "seconds.total: input should be greater than 0"),
        ("seconds.criterion_by_task", [0.1], "seconds.criterion_by_task: has 1 entries"),
        ("config.seed", MISSING, "config.seed: is missing"),
        ("config.epochs", "20", "config.epochs is '20'; give a whole number"),
        ("config.options", [], "config.options: is [], not {}"),
        ("config.increments", 2, "config.increments: is 2, not [2]"),
        ("config.level", 3, "config.level: is not a plain value"),
        ("config.future", {"a": 1}, "config.future: is not a plain value"),
        ("versions.gradmix", 3, "versions.gradmix: input should be a valid string"),
        ("variants.student", {"accuracy": [], "metrics": {}}, "variants.student.accuracy: has 0"),
        ("analysis.some", [{"task": 9, "epoch": 1}], "analysis.some.task: is 9, but"),
        ("analysis.some", [{"task": 0}], "analysis.some.epoch: field required"),
        ("analysis.detrimental-rate", [{"task": 0, "epoch": 1}], "whole_network: field required"),
        ("protocol_version", -1, "protocol_version: input should be greater"),
        ("task_aware_accuracy", [[1.0]], "task_aware_accuracy: has 1 entries, not 2"),
        ("task_aware_accuracy", [[1.0, 1.0]] * 2, "average_task_aware_accuracy is missing"),
        (
            "evaluations",
            [{"task": 0, "step": 1, "accuracy": [1.0, 0.0]}],
            "metrics: anytime_accuracy is missing",
        ),
        (
            "evaluations",
            [{"task": 2, "step": 1, "accuracy": [1.0, 0.0]}],
            "evaluations.task: is 2, but there are 2 tasks",
        ),
    ],
)
def test_a_damaged_file_is_refused_and_the_field_named(example, tmp_path, path, value, message):
    file = ResultStore(tmp_path).create().save(example(0.5))
    file.write_text(json.dumps(change(json.loads(file.read_text()), path, value)))
    with pytest.raises(FileError, match=re.escape(message)) as caught:
        load_result(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"format": NaN}', "is not valid JSON"),
        ("[" * 200_000, "is not valid JSON"),
        ("[[]]" * 600_000, "lists and objects; the limit is"),
        ("\x00\xff", "is not valid JSON"),
        ("[]", "does not have the format"),
    ],
    ids=["half", "nan", "nested", "many", "binary", "list"],
)
def test_text_that_is_not_a_result_is_refused_quickly(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(FileError, match=message):
        load_result(path)


def test_a_file_that_is_missing_huge_or_not_regular_is_refused(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        load_result(tmp_path / "absent.json")
    with pytest.raises(FileError, match="cannot be read"):
        load_result("a\0b")
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(FileError, match="the limit is"):
        load_result(tmp_path / "huge.json")
    with pytest.raises(FileError, match=r"not a regular file|cannot be read"):
        load_result(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(FileError, match="not a regular file"):
            load_result(tmp_path / "pipe.json")


def test_results_of_other_versions_load(example, tmp_path):
    """Settings that were removed, renamed mixes and settings of the future."""
    old = example(0.5)
    config = {**old.config, "level": "sample", "rolling": 2, "mix": "gradient-softmax:linear:remix"}
    path = ResultStore(tmp_path).create().save(replace(old, config={**config, "future": [1]}))
    assert load_result(path).config["level"] == "sample"
    assert result_name(config) != result_name(old.config)
    assert result_name({**old.config, "level": "class", "rolling": 1}) == result_name(old.config)


def test_the_committed_results_load_and_keep_their_names():
    folder = Path(__file__).parents[2] / "results"
    results, problems = ResultStore(folder).read_all()
    assert not problems
    assert len(results) > 500
    for result in results:
        assert (folder / result_name(result.config, result.protocol_version)).exists()
        if not result.config["model"].startswith("resnet"):
            assert result.protocol_version == protocol_version(result.config)


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({}, 1),
        ({"mix": "none"}, 1),
        ({"mix": "cutmix"}, 1),
        ({"mix": "gradient:cutmix:proportional"}, 2),
        ({"mix": "gradient-keep-original × cutmix × remix"}, 2),
        ({"mix": "gradient:manifold:remix"}, 1),
        ({"mix": "gone:linear:remix"}, 1),
        ({"mix": "balanced-remix"}, 1),
        ({"mix": "balanced-remix", "tau": 0.5}, 1),
        ({"mix": "class-balanced:linear:remix"}, 2),
        ({"mix": "class-balanced × linear × remix", "alpha": 1.0}, 2),
        ({"mix": "class-balanced:linear:remix", "tau": 0.75}, 2),
        ({"mix": "class-balanced:linear:remix", "alpha": 0.2, "tau": 0.5}, 1),
        ({"mix": "class-balanced:cutmix:remix"}, 1),
        ({"model": "resnet18"}, 1),
        ({"model": "vit-tiny", "device": "cpu"}, 2),
        ({"model": "resnet18", "device": "cuda:1"}, 1),
    ],
)
def test_the_protocol_version_depends_on_the_configuration(settings, version):
    config = {**RunConfig(data="mnist").to_json(), **settings}
    assert protocol_version(config) == version


def test_the_cpu_capability_is_known_or_unknown(example):
    assert example().cpu_capability is None
    assert replace(example(), versions={"cpu_capability": "AVX2"}).cpu_capability == "AVX2"


def test_the_schemas_of_measurements_match_the_diagnostics():
    measured = {
        "approximation-error": ApproximationError._fields,
        "precision-recall": PairAgreement._fields,
        "class-distance": ClassDistances._fields,
    }
    for name, names in measured.items():
        assert set(MEASUREMENTS[name].model_fields) == {"task", "epoch", *names}
    assert MEASUREMENTS.keys() == ANALYSES.keys()


def test_the_file_has_the_documented_fields(example, tmp_path):
    content = json.loads(ResultStore(tmp_path).create().save(example()).read_text())
    assert content == asdict(example())
    assert (content["schema_version"], content["protocol_version"]) == (2, 1)
    assert content["analysis"] == {}
