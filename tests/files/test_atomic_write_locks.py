"""One writer at a time, and a lock that ends with its process, also without flock."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from gradmix.errors import FileError, FileInUseError, GradMixError
from gradmix.files import atomic_write as lock
from gradmix.files import locked
from gradmix.runs.store import locked_in, try_to_lock

fcntl = pytest.importorskip("fcntl")

HOLD = """
import fcntl, os, sys, time
from gradmix.files import locked

def refused(*_):
    raise OSError(number, os.strerror(number))

number = int(sys.argv[2])
if number:
    fcntl.flock = refused
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=[0, errno.ENOLCK], ids=["flock", "no flock"])
def flock_error(request, monkeypatch):
    """The error of flock on this file system, or 0."""

    def refused(*_):
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr(fcntl, "flock", refused)
    return request.param


@pytest.fixture
def holder(tmp_path, flock_error):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "f"), str(flock_error)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def end(holder, folder):
    """Kill the holder, and let some minutes pass for its claim file, if it has one."""
    holder.kill()
    holder.wait()
    if (folder / ".f.lock").read_text():
        os.utime(folder / ".f.lock", (0, 0))


def test_another_process_is_kept_out_until_the_first_is_killed(tmp_path, holder):
    with (
        pytest.raises(FileInUseError, match=r"f is in use by another process"),
        locked(tmp_path / "f"),
    ):
        pass
    with locked(tmp_path / "g"):  # another file
        pass
    end(holder, tmp_path)
    with locked(tmp_path / "f"):
        pass
    assert not list(tmp_path.iterdir())
    assert issubclass(FileInUseError, FileError)
    assert issubclass(FileError, GradMixError)


def test_waiting_ends_with_the_time_or_the_holder(tmp_path, holder):
    started = time.monotonic()
    with pytest.raises(FileInUseError), locked(tmp_path / "f", timeout=0.2):
        pass
    assert time.monotonic() - started >= 0.2
    threading.Timer(0.2, end, (holder, tmp_path)).start()
    with locked(tmp_path / "f", timeout=-1):
        assert holder.returncode is not None


def test_threads_exclude_one_another_however_often_the_lock_file_goes(
    tmp_path, flock_error, monkeypatch
):
    monkeypatch.setattr(lock, "POLL", 0.001)
    inside, most, entered = 0, 0, 0

    def work():
        nonlocal inside, most, entered
        for _ in range(20):
            with locked(tmp_path / "f", timeout=-1):
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


def test_folders_made_for_the_lock_go_with_it_unless_used(tmp_path, flock_error):
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


# --- file systems without flock


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_flock_a_claim_file_names_the_holder(tmp_path, monkeypatch, number):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with locked(tmp_path / "f"):
        claim = (tmp_path / ".f.lock").read_text()
        assert claim == f"{os.getpid()} {socket.gethostname()}"
        with pytest.raises(FileInUseError), locked(tmp_path / "f"):
            pass
        assert (tmp_path / ".f.lock").read_text() == claim
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("flock_error")
def test_one_process_at_a_time_computes_a_run(tmp_path):
    claim = try_to_lock(tmp_path / "running" / "run")
    assert try_to_lock(tmp_path / "running" / "run") is None
    assert locked_in(tmp_path / "running") == [tmp_path / "running" / "run"]
    claim.close()
    try_to_lock(tmp_path / "running" / "run").close()
    assert not locked_in(tmp_path / "running")


def test_other_errors_of_flock_are_errors(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(FileError, match="cannot be locked"), locked(tmp_path / "f"):
        pass


@pytest.mark.parametrize("flock_error", [errno.ENOLCK], indirect=True)
@pytest.mark.parametrize("seconds", [lock.STALE - 60, lock.STALE + 60])
@pytest.mark.usefixtures("flock_error")
def test_a_claim_of_another_machine_is_stale_without_refreshes(tmp_path, seconds):
    claim = tmp_path / ".f.lock"
    claim.write_text("1 elsewhere")
    moment = time.time() - seconds
    os.utime(claim, (moment, moment))
    if seconds < lock.STALE:
        with pytest.raises(FileInUseError), locked(tmp_path / "f"):
            pass
        assert claim.read_text() == "1 elsewhere"
    else:
        with locked(tmp_path / "f"):
            assert claim.read_text() != "1 elsewhere"
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flock_error", [errno.ENOLCK], indirect=True)
@pytest.mark.usefixtures("flock_error")
def test_a_holder_refreshes_its_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "REFRESH", 0.01)
    with locked(tmp_path / "f"):
        os.utime(tmp_path / ".f.lock", (0, 0))
        until = time.monotonic() + 10
        while (tmp_path / ".f.lock").stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(FileInUseError), locked(tmp_path / "f"):
            pass


@pytest.mark.parametrize("flock_error", [errno.ENOLCK], indirect=True)
@pytest.mark.usefixtures("flock_error")
def test_a_stale_claim_that_another_process_took_is_left_to_it(tmp_path, monkeypatch):
    claim = tmp_path / ".f.lock"
    claim.write_text("1 elsewhere")
    os.utime(claim, (0, 0))

    def age(_claim_file, moment):  # meanwhile another process takes the lock
        claim.write_text("2 elsewhere")
        return time.time() - moment

    monkeypatch.setattr(lock.ClaimFile, "_age", age)
    with pytest.raises(FileInUseError), locked(tmp_path / "f"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".f.lock"]
    assert claim.read_text() == "2 elsewhere"
