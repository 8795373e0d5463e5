"""Frozen features: a pretrained backbone turns photos into embeddings, once per call.

Training, memory, criterion and evaluation then work on embeddings. They are rounded to float16
and computed with in float32, so that a value read from a file equals the value in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradmix.classifier.inputs import Layout
from gradmix.data.image_folders.given import read_photos
from gradmix.errors import MissingPackageError
from gradmix.models.pretrained import PRETRAINED, TIMM, Backbone, fold_batch_norms, load_pretrained

DEFAULT = "efficientnet-lite0"
EMBED_BATCH = 32  # photos that pass the backbone at a time: more do not fit a CPU's caches
Progress = Callable[[int, int], object]  # receives the photos done and the photos in total


def is_backbone(model: Any) -> bool:
    """Whether a model is the name of a pretrained backbone."""
    return isinstance(model, str) and (model in PRETRAINED or model.startswith(TIMM))


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
            inputs = self.backbone.normalise(self._resized(part).to(device))
            with torch.inference_mode():
                parts.append(module(inputs).half().float().cpu())
            if progress is not None:
                progress(sum(map(len, parts)), len(images))
        return torch.cat(parts).clone()  # an ordinary tensor, not one of inference mode

    def _resized(self, images: Tensor) -> Tensor:
        """Return RGB images of the backbone's size."""
        shape = self.photos.shape
        if tuple(images.shape[1:]) == shape:
            return images
        return read_photos(list(images), "X", shape=shape)


@cache
def _inference_module(backbone: Backbone, device: torch.device) -> Any:
    """Return the backbone for inference on a device, its batch norms folded into convolutions."""
    return fold_batch_norms(backbone.module).to(device)
