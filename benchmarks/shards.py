"""Photos in shards: rate and memory of reading them, beside a plain loop of Pillow.

    python -m benchmarks.shards [--photos 20000] [--side 224] [--stored 224] [--limit 1000]

It writes distinct photos to shards. A process with a limit on its memory then reads all of them
once in random order, in batches, as the training loop does. The limit is below the size of the
decoded photos. Chunks of photos are read in turns, in an order that rotates, by our reader with one
thread and with its usual threads, and by three plain loops of Pillow over the same files in memory:

- decoder: Pillow decodes a photo and resizes it if its size differs; the pixels stay in Pillow
- array: the same, and the pixels become an array of NumPy
- batch: the same, and the array is written to a batch with channels first, the result of our reader

A fourth loop, decoders, is the first in as many threads as our reader usually has, without order
or batches: the rate of the decoder itself on this machine.

A slow moment of the machine affects all of them. A rate above 1 means faster than the loop; the
quartiles are over the chunks. A second reader starts in the middle, as a resumed run does, and must
receive the same batches.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from PIL import Image
from torch import Tensor

from gradmix.data import from_folder, stream
from gradmix.data.image_folders.write_shards import write_shards

CLASSES, BATCH = 10, 64
CHUNK = 16  # batches that are timed at once; an epoch is one call, so its start should not count
Pixels: TypeAlias = npt.NDArray[np.uint8]


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
    """Read all photos in random order, by our reader and by Pillow; return rates and memory."""
    data = from_folder(shards, size=side, channels=3, mean=(0,) * 3, std=(255,) * 3)
    x: Any = data.train.x  # StreamedImages
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    batches = order[: len(x) // BATCH * BATCH].split(BATCH)
    plain = (*LOOPS, "decoders")
    costs: dict[str, list[Cost]] = {name: [] for name in (*plain, "one_thread", "threads")}
    size = 0
    for start in range(0, len(batches), CHUNK):
        chunk = batches[start : start + CHUNK]
        names = [x.files.names[row] for batch in chunk for row in batch.tolist()]  # train is first
        files = [x.files.source.read(name) for name in names]
        size += sum(map(len, files))
        works = {name: partial(_plain_loop, files, side, loop) for name, loop in LOOPS.items()}
        works["decoders"] = partial(_threaded_loop, files, side)
        works["one_thread"] = partial(_read, x, chunk, 1)
        works["threads"] = partial(_read, x, chunk, stream.THREADS)
        turn = start // CHUNK % len(works)
        for name in [*works, *works][turn : turn + len(works)]:
            costs[name].append(timed(works[name]))
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
        for loop in plain:
            for kind in Cost._fields:
                pairs = zip(costs[loop], costs[name], strict=True)
                ratios = [getattr(theirs, kind) / getattr(ours, kind) for theirs, ours in pairs]
                for percent in (25, 50, 75):
                    key = f"{name}_of_{loop}_{kind}_{percent}%"
                    found[key] = float(np.percentile(ratios, percent))
    return found


def _to_pillow(photo: Image.Image, _row: Pixels) -> None:
    photo.load()


def _to_array(photo: Image.Image, _row: Pixels) -> None:
    np.asarray(photo)


def _to_batch(photo: Image.Image, row: Pixels) -> None:
    row[...] = np.asarray(photo).transpose(2, 0, 1)


LOOPS: dict[str, Callable[[Image.Image, Pixels], None]] = {
    "decoder": _to_pillow,
    "array": _to_array,
    "batch": _to_batch,
}


def _plain_loop(files: list[bytes], side: int, use: Callable[[Image.Image, Pixels], None]) -> None:
    for start in range(0, len(files), BATCH):
        pixels = np.empty((BATCH, 3, side, side), dtype=np.uint8)
        for row, content in zip(pixels, files[start : start + BATCH], strict=True):
            with Image.open(io.BytesIO(content)) as photo:
                if photo.size == (side, side):
                    use(photo, row)
                else:
                    use(photo.resize((side, side), Image.Resampling.BILINEAR), row)


def _threaded_loop(files: list[bytes], side: int) -> None:
    share = -(-len(files) // stream.THREADS)
    parts = [files[start : start + share] for start in range(0, len(files), share)]
    with ThreadPoolExecutor(stream.THREADS) as pool:
        list(pool.map(partial(_decode_all, side), parts))


def _decode_all(side: int, files: list[bytes]) -> None:
    for content in files:
        with Image.open(io.BytesIO(content)) as photo:
            if photo.size == (side, side):
                photo.load()
            else:
                photo.resize((side, side), Image.Resampling.BILINEAR)


def _read(x: Any, chunk: Sequence[Tensor], threads: int) -> None:
    usual, stream.THREADS = stream.THREADS, threads
    for _ in x.batches(chunk):  # each batch is dropped, as in training
        pass
    stream.THREADS = usual


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
    parser.add_argument("--stored", type=int, help="side of the photos in the files; default: side")
    parser.add_argument("--limit", type=int, default=1000, help="MB of memory")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_DATA, (given.limit * 10**6,) * 2)
        print(json.dumps(read_all(given.read, given.side)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder, "photos"), given.photos, given.stored or given.side)
        write_shards(Path(folder, "photos"), Path(folder, "shards"), size=10**7)
        for name, value in limited(Path(folder, "shards"), given.side, given.limit).items():
            print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
