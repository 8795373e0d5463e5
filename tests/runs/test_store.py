"""The store: whole files or none, claims that end with their process, failures."""

import json
import os
import sys
from dataclasses import replace

import pytest
from claim_cases import other_process
from result_cases import example

from gradmix.errors import ResultError
from gradmix.runs.config import config_for
from gradmix.runs.results import SCHEMA_VERSION, load_result
from gradmix.runs.store import MARKER, ResultStore


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path).create()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_found(tmp_path):
    store = ResultStore(tmp_path / "new" / "runs").create()
    result = example(seed=3)
    path = store.save(result)
    assert load_result(path) == result
    assert path == store.path_of(config_for("digits", seed=3))
    assert store.find(config_for("digits", seed=3)) == result
    assert store.find(config_for("digits", seed=4)) is None
    assert names(store.path) == sorted([path.name, MARKER])


def test_results_of_another_protocol_are_kept_beside_and_not_found(store):
    old = replace(example(), protocol_version=0)
    store.save(old)
    assert store.find(config_for("digits")) is None
    store.save(example())
    assert store.find(config_for("digits")) == example()
    assert len(store.results()) == 2


def test_a_store_is_not_made_by_looking_at_it(tmp_path):
    store = ResultStore(tmp_path / "none")
    assert (store.results(), store.failures(), store.progress()) == ([], [], {})
    assert store.find(config_for("digits")) is None
    assert not store.path.exists()


def test_a_folder_has_a_name():
    with pytest.raises(ResultError, match="out is ''; name a folder"):
        ResultStore("")


def test_all_results(store):
    for seed in (2, 0, 1):
        store.save(example(seed=seed))
    store.save_failure(config_for("digits", seed=9), ValueError("no"))
    assert [result.config["seed"] for result in store.results()] == [0, 1, 2]


def test_a_folder_of_another_version_is_refused_and_left_alone(tmp_path):
    marker = tmp_path / MARKER
    marker.write_text(json.dumps({"format": "gradmix-result", "schema_version": 99}))
    with pytest.raises(ResultError, match=f"version 99 .* version {SCHEMA_VERSION}"):
        ResultStore(tmp_path)
    assert names(tmp_path) == [MARKER]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}'])
def test_a_folder_with_a_strange_marker_is_refused(tmp_path, text):
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(ResultError):
        ResultStore(tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    blocking = tmp_path / "file"
    blocking.write_text("")
    with pytest.raises(ResultError, match=r"out is .*file.*cannot be kept"):
        ResultStore(blocking).create()
    with pytest.raises(ResultError, match="cannot be kept"):
        ResultStore(blocking / "below").create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResultError, match="cannot be kept"):
        ResultStore(tmp_path).create()


def test_values_that_json_lacks_are_not_written(store):
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.save(replace(example(), accuracy=[[float("nan")]]))
    assert names(store.path) == [MARKER]


def test_a_failure_is_kept_until_the_run_succeeds(store):
    config = config_for("digits", seed=3)
    try:
        raise ValueError("no such luck")
    except ValueError as error:
        saved = store.save_failure(config, error)
    assert store.find_failure(config) == saved
    assert store.failures() == [saved]
    assert (saved.error, saved.message) == ("ValueError", "no such luck")
    assert saved.config == config.to_json()
    assert store.find_failure(config_for("digits")) is None
    store.save(example(seed=3))
    assert store.find_failure(config) is None
    assert names(store.path / "failed") == []


def test_a_traceback_names_no_folders_of_this_machine(store):
    try:
        json.loads("{")
    except ValueError as error:
        text = store.save_failure(config_for("digits"), error).traceback
    assert 'File "json/decoder.py"' in text
    assert not any(folder in text for folder in sys.path if folder)


def test_a_damaged_failure_is_refused(store):
    store.save_failure(config_for("digits"), ValueError("x"))
    (path,) = (store.path / "failed").iterdir()
    path.write_text("{}")
    with pytest.raises(ResultError, match="damaged; remove it"):
        store.failures()


def test_tidying_removes_what_the_dead_left_and_nothing_else(store):
    dead, alive = config_for("digits", seed=1), config_for("digits", seed=2)
    for config in (dead, alive):
        name = store.path_of(config).name
        store.save_failure(config, ValueError("x"))
        (store.path / f".{name}.abcdefgh.tmp").write_text("half")
        (store.path / "failed" / f".{name}.abcdefgh.tmp").write_text("half")
    process, _ = other_process(store.path / "running" / store.path_of(dead).stem)
    process.kill()
    process.communicate()
    with store.claim(alive):
        store.tidy()
        kept, stem = store.path_of(alive).name, store.path_of(alive).stem
        assert names(store.path) == sorted(["running", "failed", MARKER, f".{kept}.abcdefgh.tmp"])
        assert names(store.path / "running") == [f".{stem}.lock", stem]
        assert len(names(store.path / "failed")) == 3
