"""Whole files or none, whatever happens while they are written."""

import os
import sys
import threading

import pytest

from gradmix.files.atomic_write import remove_leftovers, replacing, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_there_when_it_is_whole(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"ne")
        assert path.read_text() == "old"
        file.write(b"w")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.json"]
    write_text(path, "später")
    assert path.read_bytes() == "später".encode()


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_nothing_changes_if_writing_fails(tmp_path, monkeypatch, broken, existing):
    path = tmp_path / "a"
    if existing:
        path.write_text("old")

    def fail(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="no space") as caught:
        write_text(path, "new")
    assert caught.value.filename == str(path)
    assert names(tmp_path) == (["a"] if existing else [])
    assert not existing or path.read_text() == "old"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_changes_if_the_writer_is_interrupted(tmp_path, error):
    path = tmp_path / "a"
    path.write_text("old")

    def write():
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_clears_up(tmp_path, at, forked):
    path = tmp_path / "a"
    path.write_text("old")
    code = """
        import os, signal
        from gradmix.files import atomic_write as atomic
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        with atomic.replacing(path) as file:
            file.write(b"half")
            file.flush()
            if at == "write":
                die()
            setattr(os, at, die)
    """
    killed = forked(code, path=path, at=at)
    killed.join()
    assert killed.exitcode == -9
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2
    write_text(tmp_path / "b", "another file's writer leaves it alone")
    assert len(names(tmp_path)) == 3
    write_text(path, "new")
    assert names(tmp_path) == ["a", "b"]


def test_the_temporary_file_of_a_living_writer_stays(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as slow:
        slow.write(b"slow")
        remove_leftovers(path)
        write_text(path, "fast")
        assert path.read_text() == "fast"
    assert path.read_text() == "slow"
    assert names(tmp_path) == ["a"]


def test_many_writers_at_once(tmp_path):
    path = tmp_path / "a"
    texts = [str(n) * 10_000 for n in range(8)]

    def write(text):
        for _ in range(20):
            write_text(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_text() in texts
    assert path.read_text() in texts
    assert names(tmp_path) == ["a"]


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
@pytest.mark.parametrize("existing", [True, False])
def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path, existing):
    (tmp_path / "versions").mkdir()
    target = tmp_path / "versions" / "v1"
    if existing:
        target.write_text("old")
    (tmp_path / "near").symlink_to("versions/v1")
    (tmp_path / "far").symlink_to("near")
    (tmp_path / "versions" / ".v1.0.tmp").write_text("left over")
    write_text(tmp_path / "far", "new")
    assert target.read_text() == "new"
    assert os.readlink(tmp_path / "far") == "near"
    assert os.readlink(tmp_path / "near") == "versions/v1"
    assert names(tmp_path / "versions") == ["v1"]


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_a_link_to_a_folder_is_refused_and_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "link", "new")
    assert names(tmp_path) == ["folder", "link"]
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


@pytest.mark.skipif(sys.platform == "win32", reason="there are none")
def test_what_is_no_file_is_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match="not a regular file"):
        write_text(path, "text")
    assert path.is_fifo()
    assert names(tmp_path) == ["pipe"]
