"""Photos of the exemplars, beside their embeddings: JPEG files in the order of the memory.

A classifier with a frozen backbone learns embeddings, and its memory contains embeddings. Photos
show what the memory contains, and another classifier can learn from them. A photo of 160 pixels a
side takes 6 to 10 KB as JPEG, about an eighth of its 77 KB; its embedding takes 2.6 KB.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from pydantic import model_validator
from torch import Tensor

from gradmix.classifier.features import Features
from gradmix.data.image_folders.given import read_photos
from gradmix.files.schema import Schema, TensorOf, refuse

QUALITY = 95  # of JPEG; at 90, embeddings of the pictures differ twice as much

Pictures = tuple[bytes, ...]


class PicturesState(Schema):
    """Pictures in a file: all bytes in one tensor, and the number of bytes of each."""

    content: Annotated[Tensor, TensorOf(torch.uint8, ndim=1)]
    sizes: Annotated[Tensor, TensorOf(torch.int64, ndim=1)]

    @model_validator(mode="after")
    def _check(self) -> PicturesState:
        if len(self.sizes) and int(self.sizes.min()) < 1:
            refuse("pictures.sizes has numbers below 1")
        if int(self.sizes.sum()) != len(self.content):
            refuse(f"pictures has {len(self.content)} bytes, not {int(self.sizes.sum())}")
        return self


def keep_pictures(
    exemplars: Tensor, embeddings: Tensor, photos: Tensor, features: Features, known: Pictures
) -> Pictures:
    """Return the picture of each exemplar.

    Args:
        exemplars: The embeddings in the memory after a call, (E, d).
        embeddings: The embeddings that it may contain: those of this call, then older exemplars.
        photos: The photos of this call, uint8, as they were read.
        features: The backbone, which resizes them.
        known: The pictures of the older exemplars.
    """
    place = {row: number for number, row in enumerate(_rows(embeddings))}
    chosen = [place[row] for row in _rows(exemplars)]
    new = [number for number in chosen if number < len(photos)]
    encoded = dict(zip(new, _encode(features, photos, new), strict=True))
    return tuple(
        encoded[number] if number < len(photos) else known[number - len(photos)]
        for number in chosen
    )


def _rows(embeddings: Tensor) -> Iterator[bytes]:
    """Return each row as bytes: the memory copies rows, so equal samples have equal bytes."""
    return (row.tobytes() for row in embeddings.cpu().numpy())


def _encode(features: Features, photos: Tensor, rows: Iterable[int]) -> Iterator[bytes]:
    for row in rows:
        photo = photos.index_select(0, torch.tensor([row]))  # photos may be files
        pixels = features.resized(photo)[0].permute(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels.numpy())).save(file, "JPEG", quality=QUALITY)
        yield file.getvalue()


def decode(pictures: Sequence[bytes], size: int) -> Tensor:
    """Return pictures as uint8 (N, 3, size, size).

    Raises:
        CorruptFileError: If one cannot be read.
    """
    if not pictures:
        return torch.empty(0, 3, size, size, dtype=torch.uint8)
    return read_photos(list(pictures), "pictures", shape=(3, size, size))


def to_state(pictures: Pictures) -> dict[str, Tensor]:
    """Return pictures as tensors, for a file."""
    content = np.frombuffer(b"".join(pictures), dtype=np.uint8)
    sizes = torch.tensor([len(picture) for picture in pictures], dtype=torch.int64)
    return {"content": torch.from_numpy(content.copy()), "sizes": sizes}


def from_state(state: Mapping[str, Tensor]) -> Pictures:
    """Return the pictures of a state that was checked."""
    content, ends = state["content"].numpy().tobytes(), state["sizes"].cumsum(0).tolist()
    return tuple(content[start:end] for start, end in zip([0, *ends], ends, strict=False))
