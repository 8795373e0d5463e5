"""No test here reaches the network or the user's own cache."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

_LISTED = [
    Path(folder) for folder in os.environ.get("GRADMIX_DATA", "").split(os.pathsep) if folder
]
_BESIDE_THE_REPOSITORY = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Isolate the search path, forbid downloads, and return the folder of the cache."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / name))
    monkeypatch.setattr("gradmix.data.locate._SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.delenv("GRADMIX_DATA", raising=False)
    monkeypatch.setenv("GRADMIX_OFFLINE", "1")
    return folder / "gradmix"


@pytest.fixture
def use_real(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts the real files of a data set on the search path, or skips."""

    def use(name: str) -> None:
        for folder in (*_LISTED, _BESIDE_THE_REPOSITORY):
            if (folder / name).is_dir():
                monkeypatch.setenv("GRADMIX_DATA", str(folder))
                return
        pytest.skip(f"no folder {name} under $GRADMIX_DATA or ../shared/data: real files not read")

    return use


@pytest.fixture(scope="session")
def idx_bytes() -> Callable[[tuple[int, ...], bytes], bytes]:
    """Return a function that writes the IDX format independently of the reader."""

    def build(shape: tuple[int, ...], values: bytes) -> bytes:
        return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values

    return build


@pytest.fixture(scope="session")
def real_photos() -> Path:
    """Return the zip of real photos in an image-folder layout, or skip."""
    for folder in (*_LISTED, _BESIDE_THE_REPOSITORY):
        if (folder / "cifar10-jpeg.zip").is_file():
            return folder / "cifar10-jpeg.zip"
    pytest.skip("no cifar10-jpeg.zip under $GRADMIX_DATA or ../shared/data: real photos not read")
