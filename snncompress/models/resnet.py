"""ResNets for CIFAR (He et al. 2016, section 4.2): basic blocks of 16, 32 and 64 channels.

``resnet20``: ResNet-20 for CIFAR: 3 blocks a stage (shortcut=A or B)
``resnet32``: ResNet-32 for CIFAR: 5 blocks a stage (shortcut=A or B)
``resnet44``: ResNet-44 for CIFAR: 7 blocks a stage (shortcut=A or B)
``resnet56``: ResNet-56 for CIFAR: 9 blocks a stage (shortcut=A or B)
``resnet110``: ResNet-110 for CIFAR: 18 blocks a stage (shortcut=A or B)

Where the width doubles, shortcut A takes every second pixel and pads with channels of zeros (no
parameters), B is a 1×1 convolution with batch norm. The parameter names are those of the public
checkpoints of github.com/akamaster/pytorch_resnet_cifar10.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from torch import Tensor, nn

from snncompress.errors import UsageError
from snncompress.models.padding import ChannelPad

INPUT_SHAPE = (3, 32, 32)
VARIANTS = ({"shortcut": "A"}, {"shortcut": "B"})  # what a checkpoint of this family may have been made with


class Shortcut(StrEnum):
    """The paper's names for the way past a block that doubles the width."""

    A = "A"
    B = "B"


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, and a shortcut past them."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride, shortcut)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, H, W) → (batch, width, ⌈H / stride⌉, ⌈W / stride⌉)."""
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))  # type: ignore[no-any-return]


class CifarResNet(nn.Module):
    """A convolution, three stages of ``blocks`` basic blocks each, an average, a linear layer."""

    def __init__(self, blocks: int, classes: int, image_shape: Sequence[int], shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(16, 16, blocks, 1, shortcut)
        self.layer2 = _stage(16, 32, blocks, 2, shortcut)
        self.layer3 = _stage(32, 64, blocks, 2, shortcut)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(self.flatten(self.pool(x)))  # type: ignore[no-any-return]


def resnet20(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE, shortcut: str = "A") -> nn.Module:
    """ResNet-20 for CIFAR."""
    return CifarResNet(3, classes, image_shape, _parse_shortcut(shortcut))


def resnet32(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE, shortcut: str = "A") -> nn.Module:
    """ResNet-32 for CIFAR."""
    return CifarResNet(5, classes, image_shape, _parse_shortcut(shortcut))


def resnet44(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE, shortcut: str = "A") -> nn.Module:
    """ResNet-44 for CIFAR."""
    return CifarResNet(7, classes, image_shape, _parse_shortcut(shortcut))


def resnet56(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE, shortcut: str = "A") -> nn.Module:
    """ResNet-56 for CIFAR."""
    return CifarResNet(9, classes, image_shape, _parse_shortcut(shortcut))


def resnet110(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE, shortcut: str = "A") -> nn.Module:
    """ResNet-110 for CIFAR."""
    return CifarResNet(18, classes, image_shape, _parse_shortcut(shortcut))


def _stage(inputs: int, width: int, blocks: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = BasicBlock(inputs, width, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(width, width, 1, shortcut) for _ in range(blocks - 1)))


def _shortcut(inputs: int, width: int, stride: int, shortcut: Shortcut) -> nn.Module:
    if stride == 1 and inputs == width:
        return nn.Identity()
    if shortcut is Shortcut.A:
        before = (width - inputs) // 2
        return ChannelPad(stride, before, width - inputs - before)
    return nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))


def _parse_shortcut(shortcut: str) -> Shortcut:
    try:
        return Shortcut(shortcut)
    except ValueError:
        raise UsageError(f"shortcut={shortcut!r} of a CIFAR ResNet: give shortcut=A or shortcut=B") from None
