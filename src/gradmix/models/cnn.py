"""A small convolutional network for photos trained from scratch, at the cost of a plain CNN.

Four stages of one 3x3 convolution each, with 32 to 256 channels, batch normalisation and ReLU.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from gradmix.models.network import Part, PooledNetwork, check_sizes
from gradmix.models.resnet import BatchNorm2d


class CNN(PooledNetwork):
    """Four convolutions with pooling between them, average pooling and a head.

    It takes images of any size. Mix point 0 is the input, points 1 and 2 follow the first two
    stages. The last stage is the special part.

    Args:
        outputs: Classes.
        in_channels: Channels of the images.
        width: Channels of the first stage; the last has 8 times as many.
    """

    draws_randomly = False
    initialises_all = True

    def __init__(self, outputs: int, *, in_channels: int = 3, width: int = 32) -> None:
        check_sizes(outputs=outputs, in_channels=in_channels, width=width)
        shared = Part(
            OrderedDict(
                stage1=_stage(in_channels, width),
                stage2=_stage(width, 2 * width),
                stage3=_stage(2 * width, 4 * width),
            ),
            mix_after=(0, 1, 2),
        )
        special = Part(
            OrderedDict(
                stage4=_stage(4 * width, 8 * width, pool=False),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
            )
        )
        super().__init__(shared, special, nn.Linear(8 * width, outputs))


def _stage(channels_in: int, channels: int, *, pool: bool = True) -> nn.Sequential:
    """(B, in, H, W) → (B, channels, ⌈H/2⌉, ⌈W/2⌉); without pooling, the size stays."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        *([nn.MaxPool2d(2, ceil_mode=True)] if pool else []),
    )
