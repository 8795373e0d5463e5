"""20,000 photos in shards, in less memory than their pixels: bounded, resumed, split by ranks."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from PIL import Image

from gradmix.data import from_folder
from gradmix.data.image_folders.write_shards import write_shards
from gradmix.mixing.plan import Plan
from gradmix.ranks import Ranks

COUNT, SIDE, LIMIT = 20_000, 160, 1_300_000_000  # 1.5 GB of pixels, and fewer bytes to allocate


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for number in range(COUNT):
        path = folder / "photos" / f"class{number % 4}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE)).save(path)
    write_shards(folder / "photos", folder / "shards", size=10**7)
    return folder / "shards"


def start(shards: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a run of two tasks that may not allocate as much as the pixels take."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT}))"
    command = f"{limit}; from gradmix.cli import main; main()"
    settings = ["--data", f"folder:{shards}@{SIDE}", "--model", "linear", "--increments", "2"]
    settings += ["--epochs", "1", "--batch-size", "64", "--seeds", "0", "--mix", "gradmix+"]
    return subprocess.Popen(
        [sys.executable, "-c", command, "run", *settings, "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
    )


def result(folder: Path) -> dict[str, Any]:
    (path,) = set(folder.glob("*.json")) - {folder / "gradmix.json"}
    found: dict[str, Any] = json.loads(path.read_text())
    return {name: found[name] for name in ("accuracy", "class_accuracy", "tasks")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_killed_run_resumes_exactly_in_bounded_memory(shards: Path, tmp_path: Path) -> None:
    whole = start(shards, tmp_path / "whole")
    assert whole.wait() == 0
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert most < LIMIT < COUNT * 3 * SIDE * SIDE
    killed = 0
    for _ in range(3):
        run = start(shards, tmp_path / "killed")
        written = time.time()
        while run.poll() is None and not _saved_since(tmp_path / "killed", written):
            time.sleep(0.2)
        if run.poll() is None:
            os.kill(run.pid, signal.SIGKILL)
            killed += 1
        run.wait()
    assert killed
    assert start(shards, tmp_path / "killed").wait() == 0
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


def _saved_since(folder: Path, moment: float) -> bool:
    """Return whether a checkpoint was written."""
    return any(
        path.is_file() and path.stat().st_mtime > moment for path in folder.rglob("*checkpoint*")
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_the_ranks_of_an_epoch_read_every_photo_once(shards: Path, size: int) -> None:
    data = from_folder(shards, size=SIDE, channels=3, mean=(0,) * 3, std=(255,) * 3)
    x: Any = data.train.x  # StreamedImages
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    index = torch.stack(order[: len(x) // 64 * 64].split(64))
    read = []
    for rank in range(size):
        plan = Plan(index * 0, index, Ranks(rank, size).rows(64))
        own = [plan.needed(step) for step in range(len(index))]
        read.append([_digest(photo) for batch in x.batches(own) for photo in batch])
    together = [digest for part in read for digest in part]
    assert len(together) == len(set(together)) == index.numel()  # all photos are distinct
    alone = [_digest(photo) for batch in x.batches(list(index)) for photo in batch]
    assert set(together) == set(alone)


def _digest(photo: torch.Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(photo.contiguous().numpy().data)
