from __future__ import annotations

import io
import pickle
import tarfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix.data import stream
from gradmix.data.image_folders.decode import ImageFiles
from gradmix.data.image_folders.source import FileSource
from gradmix.data.stream import _AHEAD, StreamedImages, map_ahead
from gradmix.errors import CorruptFileError, InputError

COUNT = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 5, 3), dtype=np.uint8)
X = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())
NAMES = [f"{k}.png" for k in range(COUNT)]


def png(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(params=["folder", "zip", "shards"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> StreamedImages:
    """All of X, and a damaged file after it."""
    files = {name: png(array) for name, array in zip(NAMES, PIXELS, strict=True)}
    files["bad.png"] = files["7.png"][:60]
    if request.param == "folder":
        path = tmp_path
        for name, content in files.items():
            (path / name).write_bytes(content)
    elif request.param == "shards":
        path = tmp_path / "shards"
        path.mkdir()
        for shard in range(3):
            with tarfile.open(path / f"{shard}.tar", "w") as archive:
                for name in list(files)[shard::3]:
                    about = tarfile.TarInfo(name)
                    about.size = len(files[name])
                    archive.addfile(about, io.BytesIO(files[name]))
    else:
        path = tmp_path / "f.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    return StreamedImages(ImageFiles(FileSource(path), [*NAMES, "bad.png"], (3, 6, 5)))


def test_looks_like_a_tensor(images: StreamedImages) -> None:
    assert len(images) == COUNT + 1
    assert images.shape == (COUNT + 1, 3, 6, 5)
    assert isinstance(images.shape, torch.Size)
    assert (images.dtype, images.ndim, images.device) == (torch.uint8, 4, torch.device("cpu"))


def test_index_select_is_that_of_the_tensor(images: StreamedImages) -> None:
    for index in (torch.tensor([3, 0, 3, 39]), torch.randperm(COUNT), torch.arange(0)):
        selected = images.index_select(0, index)
        assert selected.dtype == torch.uint8
        assert torch.equal(selected, X.index_select(0, index))
    with pytest.raises(InputError, match="dim is 1"):
        images.index_select(1, torch.arange(1))


def test_parts_decode_nothing(images: StreamedImages) -> None:
    mask = torch.arange(COUNT + 1) % 3 == 0
    part = images[:COUNT][mask[:COUNT]][torch.tensor([2, 0, 5])].to("cpu")
    assert part.shape == (3, 3, 6, 5)
    assert torch.equal(part.index_select(0, torch.arange(3)), X[[6, 0, 15]])
    assert len(images[COUNT:]) == 1  # the bad one


def test_split_is_that_of_the_tensor(images: StreamedImages) -> None:
    parts = list(images[:COUNT].split(16))
    assert [len(part) for part in parts] == [16, 16, 8]
    assert torch.equal(torch.cat(parts), X)


def test_batches_are_those_of_the_tensor(images: StreamedImages) -> None:
    part = images[:COUNT][torch.arange(COUNT - 1, -1, -1)]
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    indices = [*order.split(12), torch.arange(0), torch.tensor([1, 1])]
    for batch, index in zip(part.batches(indices), indices, strict=True):
        assert torch.equal(batch, X.flip(0)[index])


def test_a_batch_that_the_caller_drops_is_free(images: StreamedImages) -> None:
    batches = images.batches([torch.arange(3), torch.arange(3, 6)])
    batch = next(batches)
    dropped = weakref.ref(batch)
    del batch
    assert dropped() is None
    assert torch.equal(next(batches), X[3:6])


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_share_a_batch(
    images: StreamedImages, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(stream, "THREADS", threads)
    indices = [torch.arange(size) for size in (0, 1, 5, COUNT)]
    for batch, index in zip(images.batches(indices), indices, strict=True):
        assert torch.equal(batch, X[index])


def test_left_early_and_two_at_once(images: StreamedImages) -> None:
    indices = [torch.tensor([k]) for k in range(20)]
    first = images.batches(indices)
    assert torch.equal(next(first), X[:1])
    second = images[10:].batches(indices)
    assert torch.equal(next(second), X[10:11])
    assert torch.equal(next(first), X[1:2])
    first.close()  # type: ignore[attr-defined]
    assert torch.equal(torch.cat(list(images.batches(indices[5:7]))), X[5:7])
    assert torch.equal(torch.cat(list(second)), X[11:30])


def test_a_bad_file_is_named_when_it_is_due(images: StreamedImages) -> None:
    batches = images.batches([torch.tensor([1]), torch.tensor([2, COUNT]), torch.tensor([3])])
    assert torch.equal(next(batches), X[1:2])
    with pytest.raises(CorruptFileError, match=r"bad\.png: ") as caught:
        next(batches)
    assert "Traceback" not in str(caught.value)


def test_a_vanished_file_is_named(tmp_path: Path) -> None:
    images = StreamedImages(ImageFiles(FileSource(tmp_path), ["gone.png"], (3, 6, 5)))
    with pytest.raises(CorruptFileError, match=r"gone\.png"):
        images.index_select(0, torch.tensor([0]))


def test_many_threads_read_one_zip(images: StreamedImages) -> None:
    index = torch.arange(COUNT).repeat(10)
    assert torch.equal(images.index_select(0, index), X[index])


def test_files_can_be_sent_to_a_process_that_is_no_fork(images: StreamedImages) -> None:
    images.index_select(0, torch.arange(2))  # a zip is open now
    files = pickle.loads(pickle.dumps(images.files))
    pixels = torch.zeros(len(files), *files.shape, dtype=torch.uint8)
    files.decode_all(pixels.numpy())
    assert torch.equal(pixels[:COUNT], X)


# --- work ahead in threads


def test_results_come_in_order_whichever_thread_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "THREADS", 2)
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_done.wait(10)
        if item == 1:
            second_done.set()
        return item * item

    assert list(map_ahead(work, range(200))) == [k * k for k in range(200)]


def test_only_so_many_items_are_taken_in_advance() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(1000):
            taken.append(item)
            yield item

    results = map_ahead(abs, items())
    assert next(results) == 0
    assert len(taken) == _AHEAD
    assert next(results) == 1
    assert len(taken) == _AHEAD + 1


def test_an_error_is_raised_when_its_item_is_due() -> None:
    results = map_ahead(lambda item: 1 // item, [1, 1, 0, 1])
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_begins_after_the_caller_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "THREADS", 1)
    begun, stopped = [], threading.Event()

    def work(item: int) -> int:
        begun.append(item)
        if item:
            assert stopped.wait(10)
        return item

    results = map_ahead(work, range(1000))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    at_most = len(begun) + 1  # one may begin while the caller stops
    stopped.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gradmix-ahead"):
            thread.join(10)
    assert len(begun) <= at_most <= 3
