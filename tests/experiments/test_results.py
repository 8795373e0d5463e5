"""Result files: whole or not there, of this version, one for every configuration."""

import json
import os
from dataclasses import asdict, replace

import pytest

from gradmix.errors import ResultError
from gradmix.experiments.config import config_for
from gradmix.experiments.results import (
    MARKER,
    SCHEMA_VERSION,
    ResultFolder,
    RunResult,
    load_result,
    result_name,
    write_atomically,
)


def example(**config):
    return RunResult(
        config=config_for("digits", **config).to_json(),
        versions={"gradmix": "0"},
        class_names=["a", "b"],
        class_order=[1, 0],
        tasks=[],
        accuracy=[[1.0]],
        initial_accuracy=[0.5],
        class_accuracy=[[1.0, 0.5]],
        metrics={"average_accuracy": 1.0},
        variants={},
        epochs=[{"task": 0, "negative_rate": None}],
        pair_counts=[[[1, 2], [3, 4]]],
        seconds={"total": 1.0},
    )


def test_what_is_saved_is_loaded(tmp_path):
    folder = ResultFolder(tmp_path / "new" / "runs")
    result = example(seed=3)
    path = folder.save(result)
    assert load_result(path) == result
    assert folder.find(result.config) == result
    assert folder.find(example(seed=4).config) is None
    assert sorted(p.name for p in folder.path.iterdir()) == sorted([path.name, MARKER])


def test_every_configuration_has_a_name_of_its_own():
    names = {
        result_name(config_for("digits", **changes).to_json())
        for changes in [{}, {"seed": 1}, {"lr": 0.5}, {"mix": "none"}, {"increments": (5, 5)}]
    }
    assert len(names) == 5
    free = result_name(config_for("digits", mix="gradient × cutmix × remix").to_json())
    assert free.startswith("digits-er-gradient___cutmix___remix-seed0-")
    assert free.isascii()


def test_a_folder_of_another_version_is_refused_and_left_alone(tmp_path):
    marker = tmp_path / MARKER
    marker.write_text(json.dumps({"format": "gradmix-result", "schema_version": 99}))
    with pytest.raises(ResultError, match=f"version 99 .* version {SCHEMA_VERSION}"):
        ResultFolder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [MARKER]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}'])
def test_a_folder_with_a_strange_marker_is_refused(tmp_path, text):
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(ResultError):
        ResultFolder(tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    blocking = tmp_path / "file"
    blocking.write_text("")
    with pytest.raises(ResultError, match=r"out is .*file.*cannot be kept"):
        ResultFolder(blocking)
    with pytest.raises(ResultError, match="cannot be kept"):
        ResultFolder(blocking / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResultError, match="cannot be kept"):
        ResultFolder(tmp_path)


def test_damaged_files_are_refused(tmp_path):
    path = ResultFolder(tmp_path).save(example())
    whole = path.read_text()
    content = json.loads(whole)
    for text, message in [
        (whole[:100], "no result file"),
        (json.dumps({**content, "format": "x"}), "not of the format"),
        (json.dumps({**content, "schema_version": 0}), "version 0"),
        (json.dumps({k: v for k, v in content.items() if k != "accuracy"}), "accuracy"),
    ]:
        path.write_text(text)
        with pytest.raises(ResultError, match=message):
            load_result(path)
    with pytest.raises(ResultError, match="no result file"):
        load_result(tmp_path / "absent.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_values_that_json_lacks_are_not_written(tmp_path):
    folder = ResultFolder(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.save(replace(example(), accuracy=[[float("nan")]]))
    assert [p.name for p in tmp_path.iterdir()] == [MARKER]


def test_the_file_has_the_documented_fields(tmp_path):
    content = json.loads(ResultFolder(tmp_path).save(example()).read_text())
    assert content == asdict(example())
    assert content["schema_version"] == 1
