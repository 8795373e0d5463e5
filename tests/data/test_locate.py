from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gradmix.data.locate import (
    CIFAR_10,
    FASHION_MNIST,
    MNIST,
    Archive,
    FileSet,
    locate,
    locate_archive,
    search_path,
)
from gradmix.errors import CorruptFileError, DataNotFoundError

CONTENT = b"the real content"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
TOY = FileSet("toy", {"values": DIGEST}, mirrors=())
TOY_ARCHIVE = Archive("toy", "toy.tar.gz", DIGEST, "toy-bin", "names.txt", mirrors=())


def put(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a folder and the address under which 127.0.0.1 serves it."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADMIX_OFFLINE", "0")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_search_path_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "GRADMIX_DATA", os.pathsep.join([str(tmp_path / "a"), "", str(tmp_path / "b")])
    )
    expected = [
        tmp_path / "a" / "toy",
        tmp_path / "b" / "toy",
        cache / "toy",
        tmp_path / "system" / "toy",
    ]
    assert search_path("toy") == expected


@pytest.mark.parametrize(
    ("name", "packed"), [("values", False), ("values.gz", True), ("values.gz", False)]
)
def test_found_with_or_without_gz(cache: Path, name: str, packed: bool) -> None:
    path = put(cache / "toy", name, gzip.compress(CONTENT) if packed else CONTENT)
    assert locate(TOY) == {"values": path}


def test_the_first_place_wins(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / "a" / "toy", cache / "toy", tmp_path / "system" / "toy"]
    paths = [put(place, "values", CONTENT) for place in places]
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path / "a"))
    for path in paths:
        assert locate(TOY) == {"values": path}
        path.unlink()


def test_wrong_content_is_neither_used_nor_skipped(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = put(tmp_path / "a" / "toy", "values", b"something else")
    put(cache / "toy", "values", CONTENT)
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path / "a"))
    with pytest.raises(CorruptFileError) as caught:
        locate(TOY)
    actual = hashlib.sha256(b"something else").hexdigest()
    assert all(part in str(caught.value) for part in (str(bad), DIGEST, actual))


def test_damaged_gzip_is_refused(cache: Path) -> None:
    path = put(cache / "toy", "values.gz", gzip.compress(CONTENT)[:-5])
    with pytest.raises(CorruptFileError, match=path.name):
        locate(TOY)


def test_not_found_says_where_and_how(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataNotFoundError) as caught:
        locate(FASHION_MNIST)
    message = str(caught.value)
    folders = [tmp_path / "nowhere", cache, tmp_path / "system"]
    for part in (
        *(str(folder / "fashion-mnist") for folder in folders),
        "no download, because GRADMIX_OFFLINE is set",
        "apt-get install dataset-fashion-mnist",
        "export GRADMIX_DATA=<folder>",
        *(f"{name}.gz" for name in FASHION_MNIST.sha256),
        *FASHION_MNIST.mirrors,
    ):
        assert part in message


def test_no_package_is_named_for_mnist() -> None:
    with pytest.raises(DataNotFoundError) as caught:
        locate(MNIST)
    assert "apt-get" not in str(caught.value)


@pytest.mark.usefixtures("online")
def test_download_into_the_cache(served: tuple[Path, str], cache: Path) -> None:
    folder, address = served
    put(folder, "values.gz", gzip.compress(CONTENT))
    found = locate(replace(TOY, mirrors=(address,)))
    assert found == {"values": cache / "toy" / "values.gz"}
    assert gzip.decompress(found["values"].read_bytes()) == CONTENT
    (folder / "values.gz").unlink()
    assert locate(replace(TOY, mirrors=(address,))) == found  # from the cache


@pytest.mark.usefixtures("online")
def test_mirrors_are_tried_in_turn(served: tuple[Path, str], cache: Path) -> None:
    folder, address = served
    put(folder / "wrong", "values.gz", gzip.compress(b"an error page"))
    put(folder / "right", "values.gz", gzip.compress(CONTENT, 1))
    mirrors = tuple(f"{address}{name}/" for name in ("missing", "wrong", "right"))
    found = locate(replace(TOY, mirrors=mirrors))
    assert gzip.decompress(found["values"].read_bytes()) == CONTENT
    assert [path.name for path in (cache / "toy").iterdir()] == ["values.gz"]


@pytest.mark.usefixtures("online")
def test_a_bad_download_leaves_nothing(served: tuple[Path, str], cache: Path) -> None:
    folder, address = served
    put(folder / "wrong", "values.gz", gzip.compress(b"an error page"))
    mirrors = (f"{address}missing/", f"{address}wrong/")
    with pytest.raises(DataNotFoundError) as caught:
        locate(replace(TOY, mirrors=mirrors))
    message = str(caught.value)
    assert f"{address}missing/values.gz: 404" in message
    assert hashlib.sha256(b"an error page").hexdigest() in message
    assert list((cache / "toy").iterdir()) == []


@pytest.mark.usefixtures("online")
def test_progress_is_drawn_on_a_terminal_only(
    served: tuple[Path, str],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, address = served
    put(folder, "values.gz", gzip.compress(CONTENT))
    size = (folder / "values.gz").stat().st_size
    files = replace(TOY, mirrors=(address,))
    for forced, drawn in (("", False), ("1", True)):
        monkeypatch.setenv("FORCE_COLOR", forced)
        monkeypatch.setenv("NO_COLOR", "1")
        locate(files)["values"].unlink()
        assert (f"{size}/{size} bytes" in capsys.readouterr().err) is drawn


def test_offline_asks_no_mirror(served: tuple[Path, str]) -> None:
    folder, address = served
    put(folder, "values.gz", gzip.compress(CONTENT))
    with pytest.raises(DataNotFoundError):
        locate(replace(TOY, mirrors=(address,)))


def test_nothing_heavy_is_imported_early() -> None:
    heavy = "{'sklearn', 'requests', 'PIL'}"
    code = f"import sys, gradmix.data; sys.exit(bool({heavy} & set(sys.modules)))"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0


def test_archive_or_folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path / "a"))
    packed = put(cache / "toy", "toy.tar.gz", CONTENT)
    assert locate_archive(TOY_ARCHIVE) == packed
    inner = put(cache / "toy" / "toy-bin", "names.txt", b"")
    assert locate_archive(TOY_ARCHIVE) == inner.parent  # the folder first
    own = put(tmp_path / "a" / "toy", "names.txt", b"")
    assert locate_archive(TOY_ARCHIVE) == own.parent  # the earlier place first


def test_wrong_archive_is_refused(cache: Path) -> None:
    packed = put(cache / "toy", "toy.tar.gz", gzip.compress(CONTENT))
    with pytest.raises(CorruptFileError, match="the SHA-256 of the file is") as caught:
        locate_archive(TOY_ARCHIVE)
    assert str(packed) in str(caught.value)


@pytest.mark.usefixtures("online")
def test_archive_is_downloaded_as_it_is(served: tuple[Path, str], cache: Path) -> None:
    folder, address = served
    put(folder / "wrong", "toy.tar.gz", b"an error page")
    put(folder / "right", "toy.tar.gz", CONTENT)
    mirrors = tuple(f"{address}{name}/" for name in ("missing", "wrong", "right"))
    assert locate_archive(replace(TOY_ARCHIVE, mirrors=mirrors)) == cache / "toy" / "toy.tar.gz"
    assert (cache / "toy" / "toy.tar.gz").read_bytes() == CONTENT


def test_archive_not_found_says_where_and_how(cache: Path) -> None:
    with pytest.raises(DataNotFoundError) as caught:
        locate_archive(CIFAR_10)
    for part in (
        "cifar-10-binary.tar.gz of cifar-10 is not on this machine",
        str(cache / "cifar-10"),
        "no download, because GRADMIX_OFFLINE is set",
        "put cifar-10-binary.tar.gz or the unpacked cifar-10-batches-bin into a folder",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ):
        assert part in str(caught.value)
