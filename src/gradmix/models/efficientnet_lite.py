"""EfficientNet-Lite0: a small image network for CPUs, with 1,280 features per photo.

The network is EfficientNet-B0 without squeeze-and-excitation and with ReLU6 instead of Swish (Tan
and Le 2019; Liu 2020). Its 3.4 million weights come from `gradmix.models.pretrained`.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: ⌈size / stride⌉ outputs per side.

    An odd number of padded rows or columns puts the extra one at the bottom or right, where
    PyTorch's symmetric padding would put it on both sides. The weights expect this.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved images, (B, channels, ⌈H / stride⌉, ⌈W / stride⌉)."""
        top, bottom = self._padding(x.shape[-2])
        left, right = self._padding(x.shape[-1])
        if (top, left) == (bottom, right):
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), 1, self.groups)
        x = F.pad(x, (left, right, top, bottom))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, 1, self.groups)

    def _padding(self, size: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch normalisation and, if asked for, ReLU6."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__(
            SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),  # as TensorFlow
        )
        if activation:
            self.append(nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """A block of three convolutions: expand the channels, filter each of them, project back."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [ConvNorm(inputs, hidden)] if expansion > 1 else []
        layers.append(ConvNorm(hidden, hidden, kernel, stride, groups=hidden))
        layers.append(ConvNorm(hidden, outputs, activation=False))
        self.layers = nn.Sequential(*layers)
        self.has_skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, plus its input where the shapes agree."""
        y: Tensor = self.layers(x)
        return x + y if self.has_skip else y


class EfficientNetLite0(nn.Sequential):
    """Maps photos (B, 3, H, W), normalised with mean and std 127/255 and 128/255, to (B, 1280).

    The stages are the items of the sequence: stem, seven rows of blocks, final convolution,
    pooling. Any height and width from 32 pixels works; training used 224.

    >>> import torch
    >>> network = EfficientNetLite0().eval()
    >>> network(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 1280])
    """

    embedding_size = 1280

    def __init__(self) -> None:
        inputs = 32
        rows: list[nn.Module] = [ConvNorm(3, inputs, 3, 2)]
        for blocks, kernel, stride, expansion, channels in STAGES:
            row = nn.Sequential(InvertedResidual(inputs, channels, kernel, stride, expansion))
            for _ in range(blocks - 1):
                row.append(InvertedResidual(channels, channels, kernel, 1, expansion))
            rows.append(row)
            inputs = channels
        rows.append(ConvNorm(inputs, self.embedding_size))
        super().__init__(*rows, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
