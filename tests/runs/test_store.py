"""The store: whole files or none, locks that end with their process, failures."""

import errno
import json
import os
import sys
from dataclasses import replace

import pytest

from gradmix.errors import FileError
from gradmix.runs.config import config_for
from gradmix.runs.results import SCHEMA_VERSION, load_result
from gradmix.runs.store import MARKER, ResultStore


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_found(example, tmp_path):
    store = ResultStore(tmp_path / "new" / "runs").create()
    result = example(seed=3)
    path = store.save(result)
    assert load_result(path) == result
    assert path == store.path_of(config_for("digits", seed=3))
    assert store.find(config_for("digits", seed=3)) == result
    assert store.find(config_for("digits", seed=4)) is None
    assert names(store.path) == sorted([path.name, MARKER])


def test_results_of_another_protocol_are_kept_beside_and_not_found(example, store):
    old = replace(example(), protocol_version=0)
    store.save(old)
    assert store.find(config_for("digits")) is None
    store.save(example())
    assert store.find(config_for("digits")) == example()
    assert len(store.results()) == 2


def test_a_store_is_not_made_by_looking_at_it(tmp_path):
    store = ResultStore(tmp_path / "none")
    assert (store.results(), store.read_failures(), store.progress()) == ([], ([], {}), {})
    assert store.find(config_for("digits")) is None
    assert not store.path.exists()


def test_a_folder_has_a_name():
    with pytest.raises(FileError, match="out is ''; name a folder"):
        ResultStore("")


def test_all_results(example, store):
    for seed in (2, 0, 1):
        store.save(example(seed=seed))
    store.save_failure(config_for("digits", seed=9), ValueError("no"))
    assert [result.config["seed"] for result in store.results()] == [0, 1, 2]


def test_a_folder_of_another_version_is_refused_and_left_alone(tmp_path):
    marker = tmp_path / MARKER
    marker.write_text(json.dumps({"format": "gradmix-result", "schema_version": 99}))
    with pytest.raises(FileError, match=f"version 99 .* version {SCHEMA_VERSION}"):
        ResultStore(tmp_path)
    assert names(tmp_path) == [MARKER]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}'])
def test_a_folder_with_a_strange_marker_is_refused(tmp_path, text):
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(FileError):
        ResultStore(tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    blocking = tmp_path / "file"
    blocking.write_text("")
    with pytest.raises(FileError, match=r"out is .*file.*cannot hold results"):
        ResultStore(blocking).create()
    with pytest.raises(FileError, match="cannot hold results"):
        ResultStore(blocking / "below").create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="cannot hold results"):
        ResultStore(tmp_path).create()


def test_values_that_json_lacks_are_not_written(example, store):
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.save(replace(example(), accuracy=[[float("nan")]]))
    assert names(store.path) == [MARKER]


def test_a_failure_is_kept_until_the_run_succeeds(example, store):
    config = config_for("digits", seed=3)
    try:
        raise ValueError("no such luck")
    except ValueError as error:
        saved = store.save_failure(config, error)
    assert store.find_failure(config) == saved
    assert store.read_failures() == ([saved], {})
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
    found, problems = store.read_failures()
    assert found == []
    assert "config: field required; remove the file" in problems[path]
    with pytest.raises(FileError, match="damaged: config: field required"):
        store.find_failure(config_for("digits"))


def test_tidying_removes_what_the_dead_left_and_nothing_else(other_process, store):
    dead, alive = config_for("digits", seed=1), config_for("digits", seed=2)
    for config in (dead, alive):
        name = store.path_of(config).name
        store.save_failure(config, ValueError("x"))
        (store.path / f".{name}.abcdefgh.tmp").write_text("half")
        (store.path / "failed" / f".{name}.abcdefgh.tmp").write_text("half")
    process, _ = other_process(store.path / "running" / store.path_of(dead).stem)
    process.kill()
    process.join()
    with store.lock(alive):
        store.tidy()
        kept, stem = store.path_of(alive).name, store.path_of(alive).stem
        assert names(store.path) == sorted(["running", "failed", MARKER, f".{kept}.abcdefgh.tmp"])
        assert names(store.path / "running") == [f".{stem}.lock", stem]
        assert len(names(store.path / "failed")) == 3


def test_invalid_files_are_listed_and_the_others_read(example, store):
    good = store.save(example(seed=1))
    bad = {
        "half.json": "{",
        "other.json": '{"format": "other"}',
        "empty.json": "",
        "nested.json": "[" * 200_000,
    }
    for name, text in bad.items():
        (store.path / name).write_text(text)
    os.mkfifo(store.path / "pipe.json")
    (store.path / "folder.json").mkdir()
    (store.path / "broken.json").symlink_to("absent")
    results, problems = store.read_all()
    assert results == store.results() == [load_result(good)]
    assert {path.name for path in problems} == {*bad, "pipe.json", "folder.json", "broken.json"}
    assert all(str(path) in problem for path, problem in problems.items())


@pytest.mark.parametrize("path", ["a\0b", "\0"])
def test_a_nul_character_in_the_folder_is_refused(path):
    with pytest.raises(FileError, match="name a folder"):
        ResultStore(path)


def test_a_full_disk_names_the_result_file(example, store, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        store.save(example())
    assert caught.value.filename == str(store.path_of(config_for("digits")))
    assert store.results() == []


def test_messages_that_are_not_unicode_are_stored(store):
    config = config_for("digits")
    store.save_failure(config, ValueError("caf\udce9"))
    assert "caf" in store.find_failure(config).message
