"""JSON from files that may contain anything: within limits, and only from regular files."""

import os

import pytest

from gradmix.errors import FileError
from gradmix.files.schema import MOST_CONTAINERS, parse_json, read_bytes, read_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" + b"[]," * MOST_CONTAINERS + b"1]", "limit is 524288"),
        (b"[NaN]", "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b"1" * 10_000, "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
    ids=lambda value: str(value[:12]),
)
def test_invalid_text_is_a_file_error_that_names_the_file(text, message):
    with pytest.raises(FileError, match=f"^my.json .*{message}"):
        parse_json(text, "my.json")


def test_lone_surrogates_of_file_names_return():
    assert parse_json(b'["caf\\udce9"]', "f") == ["caf\udce9"]


def test_a_file_over_the_limit_is_not_read(tmp_path):
    (tmp_path / "f").write_bytes(b"[1, 2]")
    assert read_json(tmp_path / "f", most_bytes=6) == [1, 2]
    with pytest.raises(FileError, match="f has 6 bytes; the limit is 5"):
        read_json(tmp_path / "f", most_bytes=5)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_refused_and_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    for path in (tmp_path / "x.json", tmp_path, "/dev/zero"):
        with pytest.raises(FileError, match="not a regular file"):
            read_json(path)


@pytest.mark.parametrize("name", ["missing", "a\0b"])
def test_names_that_do_not_exist(name, tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_bytes(tmp_path / name)
