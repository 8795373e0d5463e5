"""Two and three ranks that train on shards: together they read what one process reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradmix.data.image_folders.write_shards import write_shards

JOB = Path(__file__).with_name("shards_rank_job.py")
PER_CLASS, BATCH = 12, 8
Results = Callable[[str, int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def results(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Train on 1, 2 and 3 ranks; return a function that loads the results of all ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    files = {
        f"{part}/{name}/{k}.png": make.png(100 * label + k + 50 * (part == "test"), 6, 6)
        for label, name in enumerate(("ant", "bee", "cat", "dog"))
        for part, count in (("train", PER_CLASS), ("test", 3))
        for k in range(count)
    }
    write_shards(make.unpacked(folder / "photos", files), folder / "shards", size=4000)
    assert len(list((folder / "shards").iterdir())) > 4
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(JOB), str(folder)], check=True, timeout=120, env=env)

    def load(mix: str, size: int) -> list[dict[str, Any]]:
        paths = [folder / f"{mix}-{size}-{rank}.pt" for rank in range(size)]
        return [torch.load(path, weights_only=True) for path in paths]

    return load


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_read_every_sample_of_every_batch_once(results: Results, size: int) -> None:
    (alone,), ranks = results("none", 1), results("none", size)
    for step, whole in enumerate(alone["steps"]):
        assert len(whole.unique()) == len(whole) == BATCH
        assert torch.equal(torch.cat([rank["steps"][step] for rank in ranks]), whole)
    for epoch, rows in enumerate(alone["epochs"]):
        assert len(rows.unique()) == len(rows) == 2 * PER_CLASS
        decoded = torch.cat([rank["epochs"][epoch] for rank in ranks])
        assert torch.equal(decoded.sort()[0], rows.sort()[0])  # no photo is decoded twice


@pytest.mark.parametrize("size", [2, 3])
def test_with_partners_ranks_read_at_least_their_own_rows(results: Results, size: int) -> None:
    (alone,), ranks = results("gradmix+", 1), results("gradmix+", size)
    for step, whole in enumerate(alone["steps"]):
        read = torch.cat([rank["steps"][step] for rank in ranks])
        assert torch.equal(read.unique(), whole.unique())


@pytest.mark.parametrize("mix", ["none", "gradmix+"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_result_is_that_of_one_process(results: Results, mix: str, size: int) -> None:
    (alone,) = results(mix, 1)
    assert torch.isfinite(alone["weights"]).all()
    for rank in results(mix, size):
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-12)
        torch.testing.assert_close(rank["losses"], alone["losses"], rtol=0, atol=1e-12)
        assert torch.equal(rank["exemplars"], alone["exemplars"])
