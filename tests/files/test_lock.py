"""One writer at a time, and a lock that ends with its process."""

import threading
import time
from multiprocessing import Pipe

import pytest

from gradmix.errors import FileError, FileInUseError, GradMixError
from gradmix.files import locked

HOLD = """
from gradmix.files import locked
with locked(path):
    answer.send("held")
    answer.recv()  # never: it is killed
"""


@pytest.fixture
def holder(tmp_path, forked):
    ours, theirs = Pipe()
    with ours, theirs:
        process = forked(HOLD, path=tmp_path / "f", answer=theirs)
        assert ours.recv() == "held"
        yield process
        process.kill()
        process.join()


def test_another_process_is_kept_out_until_the_first_is_killed(tmp_path, holder):
    with (
        pytest.raises(FileInUseError, match=r"f is in use by another process"),
        locked(tmp_path / "f"),
    ):
        pass
    with locked(tmp_path / "g"):  # another file
        pass
    holder.kill()
    holder.join()
    with locked(tmp_path / "f"):
        pass
    assert not list(tmp_path.iterdir())
    assert issubclass(FileInUseError, FileError)
    assert issubclass(FileError, GradMixError)


def test_waiting_says_so_and_ends(tmp_path, holder):
    said = []
    started = time.monotonic()
    with (
        pytest.raises(FileInUseError),
        locked(tmp_path / "f", timeout=0.2, on_wait=lambda: said.append("waiting")),
    ):
        pass
    assert time.monotonic() - started >= 0.2

    def kill_holder():
        said.append("again")
        holder.kill()

    with locked(tmp_path / "f", timeout=None, on_wait=kill_holder):
        pass
    assert said == ["waiting", "again"]


def test_threads_exclude_one_another_however_often_the_lock_file_goes(tmp_path):
    inside, most, entered = 0, 0, 0

    def work():
        nonlocal inside, most, entered
        for _ in range(20):
            with locked(tmp_path / "f", timeout=None):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                entered += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entered == 120


def test_a_name_with_a_nul_is_a_clear_error(tmp_path):
    with pytest.raises(FileError, match="cannot be locked"), locked(tmp_path / "a\0b"):
        pass


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be locked"), locked(tmp_path / "file" / "f"):
        pass


def test_folders_made_for_the_lock_go_with_it_unless_used(tmp_path):
    (tmp_path / "there").mkdir()
    with locked(tmp_path / "there" / "a" / "b" / "f"):
        assert (tmp_path / "there" / "a" / "b").is_dir()
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]  # which was there before
    with pytest.raises(InterruptedError), locked(tmp_path / "new" / "f"):
        raise InterruptedError
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "c" / "d" / "f"):
        (tmp_path / "c" / "g").touch()
    assert [*(tmp_path / "c").iterdir()] == [tmp_path / "c" / "g"]
