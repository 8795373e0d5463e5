"""Frozen features: a pretrained backbone turns photos into embeddings, once per call.

Training, memory, criterion and evaluation then work on embeddings. They are rounded to float16
and computed with in float32, so that a value read from a file equals the value in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.classifier.inputs import Layout, reading
from gradmix.data.image_folders.given import read_photos
from gradmix.errors import MissingPackageError
from gradmix.models.pretrained import Backbone, fold_batch_norms, load_pretrained

DEFAULT = "efficientnet-lite0"
EMBED_BATCH = 32  # photos that pass the backbone at a time: more do not fit a CPU's caches
Progress = Callable[[int, int], object]  # receives the photos done and the photos in total


def default_backbone() -> str | None:
    """Return the default backbone for photos; None if its weights are not installed."""
    try:
        load_features(DEFAULT)
    except MissingPackageError:
        return None
    return DEFAULT


@cache
def load_features(name: str, size: int | None = None) -> Features:
    """Return the frozen features of a pretrained backbone, loaded once per process.

    Args:
        name: Name of the backbone.
        size: Pixels per side of its photos; None is the backbone's own.

    Raises:
        MissingPackageError: If its weights are not installed; the message names the extra.
        UnknownNameError: If there is no such backbone.
    """
    return Features(load_pretrained(name, input_size=size))


def features_of(
    model: str | nn.Module,
    size: int | None,
    weights: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Features:
    """Return the frozen features of a named backbone or of a copy of the caller's module.

    Args:
        model: A name, or a module that maps photos to embeddings; see `load_pretrained`.
        size: Pixels per side of its photos. Default: the backbone's own, 224 for a module.
        weights: A file with weights, instead of the published ones or the module's.
        mean: The mean of each channel for bytes, 0 to 255. Default: the backbone's own,
            ImageNet's for a module.
        std: The standard deviation of each channel, likewise.

    Raises:
        InputError: If the weights do not fit, or the module cannot embed photos.
    """
    if isinstance(model, str) and weights is None:
        found = load_features(model, size)
    else:
        with reading("model or weights"):
            own = model if isinstance(model, str) else deepcopy(model)
            found = Features(load_pretrained(own, weights=weights, input_size=size))
    backbone = found.backbone
    if mean is not None:
        backbone = replace(backbone, mean=tuple(value / 255 for value in mean))
    if std is not None:
        backbone = replace(backbone, std=tuple(value / 255 for value in std))
    return Features(backbone)


@dataclass(frozen=True)
class Features:
    """Computes embeddings of photos with a frozen backbone."""

    backbone: Backbone

    @property
    def photos(self) -> Layout:
        """The form of photos that the backbone takes."""
        size = self.backbone.input_size
        return Layout((3, size, size))

    @property
    def layout(self) -> Layout:
        """The form of the embeddings."""
        return Layout((self.backbone.embedding_size,))

    def embed(
        self, images: Tensor, device: torch.device, progress: Progress | None = None
    ) -> Tensor:
        """Return the embeddings of uint8 images (N, C, H, W), float32 (N, d) on the CPU.

        Args:
            images: Images of any size with 1, 3 or 4 channels.
            device: Where the backbone computes.
            progress: Receives the number of images done and in total.
        """
        module = _inference_module(self.backbone, device)
        parts = []
        for part in images.split(EMBED_BATCH):
            inputs = self.backbone.normalise(self.resized(part).to(device))
            with torch.inference_mode():
                parts.append(module(inputs).half().float().cpu())
            if progress is not None:
                progress(sum(map(len, parts)), len(images))
        return torch.cat(parts).clone()  # an ordinary tensor, not one of inference mode

    def resized(self, images: Tensor) -> Tensor:
        """Return RGB images of the backbone's size."""
        shape = self.photos.shape
        if tuple(images.shape[1:]) == shape:
            return images
        return read_photos(list(images), "X", shape=shape)


@lru_cache(maxsize=4)
def _inference_module(backbone: Backbone, device: torch.device) -> Any:
    """Return the backbone for inference on a device, its batch norms folded into convolutions."""
    return fold_batch_norms(backbone.module).to(device)
