"""Folders and zip files of small images."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Files = dict[str, bytes]


class ImageMaker:
    """Makes images, their files, and folders or zip files of them."""

    def picture(
        self, seed: int, width: int = 4, height: int = 4, *, mode: str = "RGB"
    ) -> Image.Image:
        channels = len(Image.new(mode, (1, 1)).getbands())
        shape = (height, width) if channels == 1 else (height, width, channels)
        noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        return Image.fromarray(noise, mode) if mode == "CMYK" else Image.fromarray(noise)

    def encoded(self, image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        return stream.getvalue()

    def png(self, seed: int, *size: int, mode: str = "RGB") -> bytes:
        return self.encoded(self.picture(seed, *size, mode=mode))

    def two_classes(self) -> Files:
        return {
            **{f"train/dog/{k}.png": self.png(k) for k in range(2)},
            **{f"train/cat/{k}.png": self.png(10 + k) for k in range(3)},
            **{f"test/{name}/0.png": self.png(seed) for name, seed in (("dog", 20), ("cat", 21))},
        }

    def one_each(self, first: bytes, second: bytes, third: bytes | None = None) -> Files:
        third = second if third is None else third
        return {"train/a/0.png": first, "train/b/1.png": second, "test/a/2.png": third} | {
            "test/b/3.png": third
        }

    def damaged(self) -> Files:
        photo = self.encoded(self.picture(3, 32, 32), "JPEG")
        files = {f"train/{c}/{k}.jpg": photo for c in "ab" for k in range(3)}
        files |= {f"test/{c}/{k}.jpg": photo for c in "ab" for k in range(2)}
        files["train/b/1.jpg"] = photo[: len(photo) // 2]
        files["train/b/2.jpg"] = b"no image"
        files["test/a/0.jpg"] = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n"
        return files

    def unpacked(self, folder: Path, files: Files) -> Path:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    def packed(self, path: Path, files: Files) -> Path:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path


@pytest.fixture(scope="session")
def make() -> ImageMaker:
    return ImageMaker()
