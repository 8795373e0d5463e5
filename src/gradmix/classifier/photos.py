"""Photos through a frozen backbone, and images in files.

A pretrained backbone turns each photo into an embedding, once per call. Training, memory, criterion
and evaluation then work on embeddings. They are rounded to float16 and computed with in float32, so
that a value read from a file equals the value in memory.

Photos of the exemplars are stored beside their embeddings, as JPEG files in the order of the
memory. They show what the memory contains, and another classifier can learn from them. A photo of
160 pixels a side takes 6 to 10 KB as JPEG, an eighth of its 77 KB; its embedding takes 2.6 KB.

Without a frozen backbone, the exemplars are images themselves. Files store them as lossless WebP,
half of their size, so that learning continues with the same pixels.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps, features
from pydantic import Field, model_validator
from torch import Tensor, nn

from gradmix.data.image_folders.given import photo_sizes, read_photos
from gradmix.data.stream import map_ahead
from gradmix.errors import InputError, MissingPackageError
from gradmix.files.schema import Schema, TensorOf, refuse
from gradmix.models.pretrained import Backbone, fold_batch_norms, load_pretrained

if TYPE_CHECKING:
    from gradmix.classifier.state import Learned

DEFAULT = "efficientnet-lite0"
EMBED_BATCH = 32  # photos that pass the backbone at a time: more do not fit a CPU's caches
EXPANSION = 100  # largest size of decoded images, as a multiple of their size in the file
WEBP_SIDE = 16383  # the largest side of a WebP image in pixels
CHANNELS = (1, 3, 4)  # of encoded images: grey, RGB, RGBA
QUALITY = 95  # of JPEG; at 90, embeddings of the pictures differ twice as much
Progress = Callable[[int, int], object]  # receives the photos done and the photos in total
Pictures = tuple[bytes, ...]
_Side = Annotated[int, Field(ge=1, le=WEBP_SIDE)]

# --- embeddings -----------------------------------------------------------------------------


@cache
def published_backbone(name: str, size: int | None) -> Backbone:
    """Return a backbone by name, loaded once per process; see `load_pretrained`."""
    return load_pretrained(name, input_size=size)


def default_backbone() -> str | None:
    """Return the default backbone for photos; None if its weights are not installed."""
    try:
        published_backbone(DEFAULT, None)
    except MissingPackageError:
        return None
    return DEFAULT


def embed_photos(
    backbone: Backbone, images: Tensor, device: torch.device, progress: Progress | None = None
) -> Tensor:
    """Return the embeddings of uint8 images (N, C, H, W) of any size, float32 (N, d) on the CPU."""
    module = _inference_module(backbone, device)
    parts = [torch.empty(0, backbone.embedding_size)]
    for part in images.split(EMBED_BATCH) if len(images) else ():
        inputs = backbone.normalise(resized(backbone, part).to(device))
        with torch.inference_mode():
            parts.append(module(inputs).half().float().cpu())
        if progress is not None:
            progress(sum(map(len, parts)), len(images))
    return torch.cat(parts).clone()  # an ordinary tensor, not one of inference mode


@lru_cache(maxsize=4)
def _inference_module(backbone: Backbone, device: torch.device) -> nn.Module:
    """Return the backbone for inference on a device, its batch norms folded into convolutions."""
    return fold_batch_norms(backbone.module).to(device)


def resized(backbone: Backbone, images: Tensor) -> Tensor:
    """Return images as RGB of the backbone's size."""
    shape = (3, backbone.input_size, backbone.input_size)
    return images if images.shape[1:] == shape else read_photos(list(images), "X", shape=shape)


# --- pictures of the exemplars --------------------------------------------------------------


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


def pack_pictures(pictures: Pictures) -> dict[str, Tensor]:
    """Return pictures as tensors, for a file."""
    content = np.frombuffer(b"".join(pictures), dtype=np.uint8)
    sizes = torch.tensor([len(picture) for picture in pictures], dtype=torch.int64)
    return {"content": torch.from_numpy(content.copy()), "sizes": sizes}


def unpack_pictures(state: Mapping[str, Tensor]) -> Pictures:
    """Return the pictures of a state that was checked."""
    content, ends = state["content"].numpy().tobytes(), state["sizes"].cumsum(0).tolist()
    return tuple(content[start:end] for start, end in zip([0, *ends], ends, strict=False))


class EncodedImages(PicturesState):
    """Images of one shape in a file, each as lossless WebP."""

    shape: Annotated[list[_Side], Field(min_length=3, max_length=3)]  # (C, H, W)

    @model_validator(mode="after")
    def _check_images(self) -> EncodedImages:
        """The decoded images are at most `EXPANSION` times as large as the encoded ones."""
        if not len(self.sizes) or self.shape[0] not in CHANNELS:
            refuse(f"{len(self.sizes)} images of shape {self.shape} cannot be decoded")
        if len(self.sizes) * math.prod(self.shape) > EXPANSION * len(self.content):
            refuse(
                f"{len(self.content)} bytes claim {len(self.sizes)} images of shape {self.shape}; "
                f"at most {EXPANSION} times as many bytes are decoded"
            )
        return self


def encode_images(images: Tensor) -> Tensor | dict[str, Any]:
    """Return uint8 images (N, C, H, W) in the form of `EncodedImages`, without any loss.

    Other tensors, and images that would not be smaller, are returned unchanged. The same holds for
    images that would be more than `EXPANSION` times smaller: such a file would be refused.

    >>> encoded = encode_images(torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16))
    >>> len(encoded["content"]) < 256, decode_images(encoded).shape
    (True, torch.Size([1, 1, 16, 16]))
    """
    few_channels = images.ndim == 4 and images.shape[1] in CHANNELS
    if images.dtype != torch.uint8 or not few_channels or max(images.shape[2:]) > WEBP_SIDE:
        return images
    if not features.check("webp"):
        return images
    encoded = pack_pictures(tuple(map_ahead(_to_webp, images.cpu())))
    whole, size = images.numel(), len(encoded["content"])
    if not size < whole <= EXPANSION * size:
        return images
    return {**encoded, "shape": list(images.shape[1:])}


def decode_images(state: Mapping[str, Any]) -> Tensor:
    """Return the images of a state that was checked, uint8 (N, C, H, W).

    Raises:
        InputError: If an image has another size than the state says.
        CorruptFileError: If an image cannot be read.
    """
    pictures, shape = unpack_pictures(state), tuple(state["shape"])
    if {*photo_sizes(pictures, "images")} != {(shape[2], shape[1])}:  # before pixels are decoded
        raise InputError(f"images: not all have the shape {shape}")
    return read_photos(pictures, "images", shape=shape)


def _to_webp(image: Tensor) -> bytes:
    pixels = image.expand(3, -1, -1) if len(image) == 1 else image  # WebP has no grey images
    picture = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    # Method 1 takes a tenth of the time of the default, 4, for 2% more bytes. `exact` keeps the
    # colours of transparent pixels.
    return _bytes_of(picture, "WEBP", lossless=True, quality=0, method=1, exact=True)


def keep_pictures(
    exemplars: Tensor, embeddings: Tensor, photos: Tensor, backbone: Backbone, known: Pictures
) -> Pictures:
    """Return the picture of each exemplar.

    Args:
        exemplars: The embeddings in the memory after a call, (E, d).
        embeddings: The embeddings that it may contain: those of this call, then older exemplars.
        photos: The photos of this call, uint8, as they were read.
        backbone: The backbone, which determines their size.
        known: The pictures of the older exemplars.
    """
    place = {row: number for number, row in enumerate(_rows(embeddings))}
    return tuple(
        _encode(backbone, photos, number) if number < len(photos) else known[number - len(photos)]
        for number in (place[row] for row in _rows(exemplars))
    )


def _rows(embeddings: Tensor) -> Iterator[bytes]:
    """Return each row as bytes: the memory copies rows, so equal samples have equal bytes."""
    return (row.tobytes() for row in embeddings.cpu().numpy())


def _encode(backbone: Backbone, photos: Tensor, row: int) -> bytes:
    photo = photos.index_select(0, torch.tensor([row]))  # photos may be files
    pixels = resized(backbone, photo)[0].permute(1, 2, 0)  # (H, W, C)
    return _bytes_of(Image.fromarray(np.ascontiguousarray(pixels.numpy())), "JPEG", quality=QUALITY)


def _bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(pictures: Sequence[bytes], size: int) -> Tensor:
    """Return pictures as uint8 (N, 3, size, size); CorruptFileError if one cannot be read."""
    if not pictures:
        return torch.empty(0, 3, size, size, dtype=torch.uint8)
    return read_photos(list(pictures), "pictures", shape=(3, size, size))


# --- contact sheets -------------------------------------------------------------------------

SIDE, GAP, MOST = 48, 2, 64  # pixels of a thumbnail, pixels between two, thumbnails per class
ABOVE, LEAST_WIDTH = 14, 160  # pixels of a class's name, and of the sheet


def contact_sheet(learned: Learned) -> bytes:
    """Return all exemplars as one PNG: one line per class, with its name above."""
    strips = class_strips(learned)
    line = ABOVE + SIDE + GAP
    width = max(LEAST_WIDTH, *(strip.width for _, strip in strips))
    sheet = Image.new("RGB", (width, line * len(strips)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (name, strip) in enumerate(strips):
        text = name.encode("latin-1", "replace").decode("latin-1")
        draw.text((2, row * line + 1), text, fill="black")
        sheet.paste(strip, (0, row * line + ABOVE))
    return _bytes_of(sheet, "PNG")


def contact_page(learned: Learned) -> str:
    """Return all exemplars as a self-contained HTML page."""
    lines = [
        f"<h2>{html.escape(name)}</h2>\n<img alt='exemplars of {html.escape(name)}' "
        f"src='data:image/png;base64,{base64.b64encode(_bytes_of(strip, 'PNG')).decode()}'>"
        for name, strip in class_strips(learned)
    ]
    style = "body{font:16px sans-serif;margin:2em}h2{font-size:1em}img{max-width:100%}"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Exemplars</title>"
        f"<style>{style}</style></head><body>\n<h1>Exemplars</h1>\n"
        + "\n".join(lines)
        + "\n</body></html>\n"
    )


def class_strips(learned: Learned) -> list[tuple[str, Image.Image]]:
    """Return for each class its name with the number of exemplars, and these side by side."""
    if not learned.setup.given.images:
        raise InputError("this classifier stores rows of numbers and no pictures")
    x, y = learned.exemplars()
    own = [x[y == number] for number in range(len(learned.labels.known))]
    return [
        (f"{label} ({len(images)})", _strip(images[:MOST]))
        for label, images in zip(learned.labels.known, own, strict=True)
    ]


def _strip(images: Tensor) -> Image.Image:
    step = SIDE + GAP
    strip = Image.new("RGB", (max(1, len(images)) * step, SIDE), "white")
    for place, image in enumerate(images):
        pixels = np.asarray(image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1))
        picture = Image.fromarray(pixels.transpose(1, 2, 0).copy())
        strip.paste(ImageOps.contain(picture, (SIDE, SIDE)), (place * step, 0))
    return strip
