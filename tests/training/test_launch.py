"""Processes of one run: what is refused, how they end, and what a killed one leaves behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from gradmix import config_for, run
from gradmix.errors import InputError
from gradmix.training.build import make_fabric
from gradmix.training.launch import Devices, open_job

SOON = 120  # seconds; an idle machine needs less than 10
DIGITS = ("run", "--data", "digits", "--seeds", "0", "--threads", "1")


@pytest.mark.parametrize(
    "started",
    [{"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, {"SLURM_STEP_NUM_TASKS": "4"}],
)
def test_independent_jobs_under_torchrun_or_srun_are_refused(started, monkeypatch):
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"one of 4 processes .* give devices="):
        make_fabric("cpu", "32-true")


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_an_impossible_number_of_devices(value):
    with pytest.raises(InputError, match=r"devices is .*; give a whole number of 1 or more"):
        Devices(value)


@pytest.mark.parametrize(
    ("device", "wanted", "message"),
    [
        ("cpu", Devices(1, 2), "nodes is 2; start the command on every node with torchrun"),
        ("cpu", Devices(2), "start this program with torchrun or srun"),
    ],
)
def test_devices_that_need_another_start(device, wanted, message):
    with pytest.raises(InputError, match=message), open_job(device, "32-true", wanted):
        raise AssertionError("the job must not start")


def test_more_devices_than_rows_are_refused_before_any_work():
    with pytest.raises(InputError, match="devices times nodes is 40, and batch_size is 32"):
        run(config_for("digits"), devices=40)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "foster"}, "method is 'foster', which needs whole weights; give one of er, "),
        ({"method": "mir"}, "method is 'mir', which needs whole weights; give one of er, "),
        ({"head": "growing"}, "head is 'growing', which replaces weights; give head 'fixed'"),
        ({"precision": "16-mixed"}, "precision is '16-mixed', .*; give 'bf16-mixed'"),
        ({"analyses": ("detrimental-rate",)}, "analyses is .*; omit them"),
    ],
)
def test_weights_that_cannot_be_split_are_refused_before_any_work(settings, message, monkeypatch):
    monkeypatch.setattr("gradmix.runs.run.open_job", None)
    with pytest.raises(InputError, match=f"--shard-weights. is on, but {message}.* omit shard_w"):
        run(config_for("digits", mix="gradmix", **settings), devices=2, shard_weights=True)


def test_one_device_has_no_split_weights():
    with pytest.raises(InputError, match="is on, but devices is 1; give 2 or more"):
        run(config_for("digits"), shard_weights=True)


def test_one_device_is_alone():
    with open_job("cpu", "32-true", Devices()) as job:
        assert job.ranks.alone


def gradmix(folder, *options):
    """Start a command of gradmix; its messages go to a file."""
    command = "from gradmix.cli import main; main()"
    with open(folder / "messages", "w") as messages:
        return subprocess.Popen(
            [sys.executable, "-c", command, *DIGITS, "--out", str(folder / "out"), *options],
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,
        )


def torchrun(folder, *options):
    """Run a command of gradmix in two processes of torchrun."""
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (*launch, "-m", "gradmix", *DIGITS, "--out", str(folder / "out"), *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_run_under_torchrun_is_the_run_of_one_process(tmp_path):
    done = torchrun(tmp_path, "--epochs", "1", "--mix", "gradmix+", "--devices", "2")
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("out/digits*.json")  # rank 0 alone writes
    found = json.loads(file.read_text())
    expected = run(config_for("digits", mix="gradmix+", epochs=1, threads=1))
    for name in ("accuracy", "pair_counts"):
        one = torch.tensor(getattr(expected, name))
        torch.testing.assert_close(torch.tensor(found[name]), one, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_run_with_split_weights_is_the_run_of_one_process(tmp_path):
    process = gradmix(tmp_path, "--epochs", "2", "--devices", "2", "--shard-weights")
    assert process.wait(SOON) == 0, (tmp_path / "messages").read_text()
    expected = run(config_for("digits", epochs=2, threads=1))
    found = torch.tensor(result_of(tmp_path)["accuracy"])
    torch.testing.assert_close(found, torch.tensor(expected.accuracy), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_torchrun_without_devices_is_refused(tmp_path):
    done = torchrun(tmp_path, "--epochs", "1")
    assert done.returncode != 0
    assert "each would compute the run alone; give" in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("out/digits*.json"))


def ranks_of(process):
    """Return the process ids of the other ranks."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{entry}/cmdline", "rb") as line:
                    is_rank = b"spawn_main" in line.read()
            except OSError:
                continue
            if parent == process.pid and is_rank:
                found.append(int(entry))
    return sorted(found)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def result_of(folder):
    (path,) = (folder / "out").glob("digits*.json")
    result = json.loads(path.read_text())
    return {name: result[name] for name in ("accuracy", "epochs", "pair_counts", "tasks")}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds processes in /proc")
def test_a_rank_is_killed_ten_times(tmp_path):
    """The job ends soon, with one message, and its result has the bits of a whole run."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    options = ("--epochs", "40", "--devices", "3")
    assert gradmix(whole, *options).wait(1800) == 0
    chance, kills = random.Random(0), 0
    while True:
        process = gradmix(killed, *options)
        while len(ranks_of(process)) < 2 and process.poll() is None:
            time.sleep(0.05)
        ranks = [process.pid, *ranks_of(process)]
        if kills == 10:
            assert process.wait(1800) == 0
            break
        time.sleep(chance.uniform(0, 20))
        rank = chance.randrange(3)
        if not alive(ranks[rank]):  # it was faster: compare it, and start anew
            assert process.wait(SOON) == 0
            assert result_of(killed) == result_of(whole)
            shutil.rmtree(killed / "out")
            continue
        os.kill(ranks[rank], signal.SIGKILL)
        kills, until = kills + 1, time.monotonic() + SOON
        while any(map(alive, ranks)) and time.monotonic() < until:
            process.poll()
            time.sleep(0.05)
        assert not any(map(alive, ranks)), (kills, rank, (killed / "messages").read_text())
        process.wait()
        lines = [line for line in (killed / "messages").read_text().splitlines() if "ended" in line]
        assert len(lines) == 1, lines
        assert lines[0].endswith("the same command resumes from the last checkpoint")
        assert f"rank {rank} ended" in lines[0]
        assert "Traceback" not in (killed / "messages").read_text()
    assert result_of(killed) == result_of(whole)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds processes in /proc")
def test_ctrl_c_ends_all_ranks(tmp_path):
    process = gradmix(tmp_path, "--epochs", "2000", "--devices", "2")
    while not list((tmp_path / "out").glob("running/digits*")):  # it computes the run
        assert process.poll() is None
        time.sleep(0.1)
    ranks = ranks_of(process)
    assert len(ranks) == 1
    time.sleep(3)  # it trains, except on a busy machine
    process.send_signal(signal.SIGINT)
    assert process.wait(SOON) == 130
    assert not any(map(alive, ranks))
    assert "the same command computes the rest" in (tmp_path / "messages").read_text()
