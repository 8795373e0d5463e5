"""Photos in shards: rate and memory of reading them, beside a plain loop of Pillow.

    python -m benchmarks.shards [--photos 20000] [--side 224] [--limit 1000]

It writes distinct photos to shards. A process with a limit on its memory then reads all of them
once in random order, in batches, as the training loop does. The limit is below the size of the
decoded photos. Chunks of photos are read three times in turn: by a plain loop of Pillow over the
same files in memory, by our reader with one thread, and by our reader with its usual threads. A
slow moment of the machine therefore affects all of them. A rate above 1 means faster than Pillow;
the quartiles are over the chunks. A second reader starts in the middle, as a resumed run does, and
must receive the same batches.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from PIL import Image
from torch import Tensor

from gradmix.data import from_folder, stream
from gradmix.data.image_folders.write_shards import write_shards

CLASSES, BATCH, CHUNK = 10, 64, 4  # CHUNK: batches that are timed at once


class Cost(NamedTuple):
    """Seconds of a loop."""

    wall: float
    cpu: float


def timed(work: Callable[[], None]) -> Cost:
    """Return the cost of `work` in all threads of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def write_photos(folder: Path, count: int, side: int) -> None:
    """Write distinct JPEG files: noise of half the size, enlarged."""
    rng = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"class{number}").mkdir(parents=True)
    for number in range(count):
        noise = rng.integers(0, 256, (side // 2, side // 2, 3), dtype=np.uint8)
        photo = Image.fromarray(noise).resize((side, side), Image.Resampling.BILINEAR)
        photo.save(folder / f"class{number % CLASSES}" / f"{number:06}.jpg", quality=90)


def read_all(shards: Path, side: int) -> dict[str, float]:
    """Read all photos once in random order, and by Pillow; return rates and memory."""
    data = from_folder(shards, size=side, channels=3, mean=(0,) * 3, std=(255,) * 3)
    x: Any = data.train.x  # StreamedImages
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    batches = order[: len(x) // BATCH * BATCH].split(BATCH)
    costs: dict[str, list[Cost]] = {"pillow": [], "one_thread": [], "threads": []}
    size, threads = 0, stream.THREADS
    for start in range(0, len(batches), CHUNK):
        chunk = batches[start : start + CHUNK]
        names = [x.files.names[row] for batch in chunk for row in batch.tolist()]  # train is first
        files = [x.files.source.read(name) for name in names]
        size += sum(map(len, files))
        costs["pillow"].append(timed(partial(_plain_loop, files)))
        stream.THREADS = 1
        costs["one_thread"].append(timed(partial(_read, x, chunk)))
        stream.THREADS = threads
        costs["threads"].append(timed(partial(_read, x, chunk)))
    digests = [_digest(batch) for batch in x.batches(batches)]
    half = len(batches) // 2
    resumed = [_digest(batch) for batch in x.batches(batches[half:])]
    count = len(batches) * BATCH
    found = {
        "photos": count,
        "kb_per_file": size / count / 1e3,
        "decoded_mb": len(x) * 3 * side * side / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "photos_per_second": count / sum(cost.wall for cost in costs["threads"]),
        "distinct_batches": len(set(digests)),
        "resumed_exactly": float(resumed == digests[half:]),
    }
    for name in ("one_thread", "threads"):
        for kind in Cost._fields:
            pairs = zip(costs["pillow"], costs[name], strict=True)
            ratios = [getattr(plain, kind) / getattr(ours, kind) for plain, ours in pairs]
            for percent in (25, 50, 75):
                found[f"{name}_{kind}_{percent}%"] = float(np.percentile(ratios, percent))
    return found


def _plain_loop(files: list[bytes]) -> None:
    for content in files:
        with Image.open(io.BytesIO(content)) as photo:
            np.asarray(photo.convert("RGB"))


def _read(x: Any, chunk: Sequence[Tensor]) -> None:
    for _ in x.batches(chunk):  # each batch is dropped, as in training
        pass


def _digest(batch: Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(batch.numpy().data)


def limited(shards: Path, side: int, limit: int) -> dict[str, float]:
    """Return what `read_all` returns in a process that may allocate `limit` MB."""
    command = [sys.executable, "-m", "benchmarks.shards", "--read", str(shards)]
    command += ["--side", str(side), "--limit", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--limit", type=int, default=1000, help="MB of memory")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_DATA, (given.limit * 10**6,) * 2)
        print(json.dumps(read_all(given.read, given.side)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder, "photos"), given.photos, given.side)
        write_shards(Path(folder, "photos"), Path(folder, "shards"), size=10**7)
        for name, value in limited(Path(folder, "shards"), given.side, given.limit).items():
            print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
