"""Folders and zip files of small images."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = dict[str, bytes]


def picture(seed: int, width: int = 4, height: int = 4, *, mode: str = "RGB") -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height, width) if channels == 1 else (height, width, channels)
    noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(noise, mode) if mode == "CMYK" else Image.fromarray(noise)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(seed: int, *size: int, mode: str = "RGB") -> bytes:
    return encoded(picture(seed, *size, mode=mode))


def two_classes() -> Files:
    return {
        **{f"train/dog/{k}.png": png(k) for k in range(2)},
        **{f"train/cat/{k}.png": png(10 + k) for k in range(3)},
        **{f"test/{name}/0.png": png(seed) for name, seed in (("dog", 20), ("cat", 21))},
    }


def unpacked(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def packed(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
