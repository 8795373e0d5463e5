"""Convolutional networks: ResNet-18, and a plain CNN for photos trained from scratch.

ResNet-18 is the paper's network for CIFAR and Tiny ImageNet, here for images of 32 to 224 pixels.
Source: He et al., "Deep Residual Learning for Image Recognition", 2016. The form for small images
follows kuangliu/pytorch-cifar and Mammoth: a 3x3 stem without pooling, post-activation blocks and
PyTorch's default initialisation. (PyCIL draws Kaiming-normal weights.) The paper cites both
ResNet papers and does not say which form it used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from gradmix.errors import InputError
from gradmix.models.network import Mix, OwnNetwork, Part, check_sizes

TORCHVISION_NAMES = {
    "conv1.": "shared.stem.0.",
    "bn1.": "shared.stem.1.",
    "layer1.": "shared.layer1.",
    "layer2.": "shared.layer2.",
    "layer3.": "shared.layer3.",
    "layer4.": "special.layer4.",
    "fc.": "head.",
}
"""For `load_backbone`: names of torchvision's and timm's resnet18 in ResNet18(stem="7x7")."""


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's BatchNorm for batches of any size.

    A single value per channel (one image of 1x1 pixels) has no variance, and PyTorch refuses to
    train on it. Such a batch is normalised with the running statistics, which stay unchanged.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of x (B, C, H, W)."""
        if self.training and x.numel() == x.shape[1]:
            running = self.running_mean, self.running_var
            return F.batch_norm(x, *running, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, (B, in, H, W) → (B, out, ⌈H/stride⌉, ⌈W/stride⌉)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU after the sum (post-activation)."""
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        h = self.bn2(self.conv2(h))
        h += x if self.downsample is None else self.downsample(x)
        return F.relu(h, inplace=True)


class PooledNetwork(OwnNetwork):
    """A network that ends with average pooling over the positions of a feature map, and a head.

    Args:
        stages: Modules by name. The last one is the special part.
        mix_after: The stages after which hidden states can be mixed; see `Part`.
        width: Channels of the last stage.
        outputs: Classes.
    """

    def __init__(
        self, stages: Mapping[str, nn.Module], mix_after: Sequence[int], width: int, outputs: int
    ) -> None:
        *shared, last = stages.items()
        pooling = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
        super().__init__(
            Part(OrderedDict(shared), mix_after=mix_after),
            Part(OrderedDict([last, *pooling.items()])),
            nn.Linear(width, outputs),
        )

    def tokens(self, x: Tensor, mix: Mix | None = None, at: int | None = None) -> Tensor:
        """Return the positions of the last feature map, (B, H · W, d)."""
        feature_map: Tensor = self.special[0](self.shared(x, mix, at))
        return feature_map.flatten(2).mT


class ResNet18(PooledNetwork):
    """Four layers of two blocks, average pooling and a head; takes images of any size.

    The mix points are Manifold Mixup's: 0 is the input, 1 follows stem and layer 1, 2 follows
    layer 2. Layer 4 is the special part, as in MEMO.

    Args:
        outputs: Classes.
        in_channels: Channels of the images.
        width: Channels of the first layer; the last has 8 times as many.
        stem: "3x3" for small images, "7x7" (stride 2, then max-pooling) for ImageNet's.
    """

    def __init__(
        self, outputs: int, *, in_channels: int = 3, width: int = 64, stem: str = "3x3"
    ) -> None:
        check_sizes(outputs=outputs, in_channels=in_channels, width=width)
        stages = {
            "stem": _stem(stem, in_channels, width),
            "layer1": _layer(width, width, stride=1),
            "layer2": _layer(width, 2 * width, stride=2),
            "layer3": _layer(2 * width, 4 * width, stride=2),
            "layer4": _layer(4 * width, 8 * width, stride=2),
        }
        super().__init__(stages, (0, 2, 3), 8 * width, outputs)


def _stem(kind: str, in_channels: int, width: int) -> nn.Sequential:
    if kind not in ("3x3", "7x7"):
        raise InputError(f"stem is {kind!r}; it must be '3x3' or '7x7'")
    large = kind == "7x7"
    size, stride = (7, 2) if large else (3, 1)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, size, stride, padding=size // 2, bias=False),
        BatchNorm2d(width),
        nn.ReLU(inplace=True),
        *([nn.MaxPool2d(3, stride=2, padding=1)] if large else []),
    )


def _layer(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)
    )


class CNN(PooledNetwork):
    """Four 3x3 convolutions with BatchNorm, ReLU and pooling between them, and a head.

    It takes images of any size. Mix point 0 is the input, points 1 and 2 follow the first two
    stages. The last stage is the special part.

    Args:
        outputs: Classes.
        in_channels: Channels of the images.
        width: Channels of the first stage; the last has 8 times as many.
    """

    def __init__(self, outputs: int, *, in_channels: int = 3, width: int = 32) -> None:
        check_sizes(outputs=outputs, in_channels=in_channels, width=width)
        stages = {
            "stage1": _stage(in_channels, width),
            "stage2": _stage(width, 2 * width),
            "stage3": _stage(2 * width, 4 * width),
            "stage4": _stage(4 * width, 8 * width, pool=False),
        }
        super().__init__(stages, (0, 1, 2), 8 * width, outputs)


def _stage(channels_in: int, channels: int, *, pool: bool = True) -> nn.Sequential:
    """(B, in, H, W) → (B, channels, ⌈H/2⌉, ⌈W/2⌉); without pooling, the size stays."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        *([nn.MaxPool2d(2, ceil_mode=True)] if pool else []),
    )
