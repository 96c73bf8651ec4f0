"""Wide ResNets for CIFAR (Zagoruyko and Komodakis 2016): pre-activation blocks, k times as wide.

``wrn16-2``: Wide ResNet for CIFAR, 16 layers, twice as wide: pre-activation blocks of 32, 64, 128 channels

The parameter names are those of github.com/xternalz/WideResNet-pytorch, which many public checkpoints use.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

INPUT_SHAPE = (3, 32, 32)


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each of two 3×3 convolutions, and a shortcut past them.

    Where the width changes, the shortcut is a 1×1 convolution of the activated input.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.convShortcut = None if inputs == width else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, H, W) → (batch, width, ⌈H / stride⌉, ⌈W / stride⌉)."""
        activated = self.relu1(self.bn1(x))
        out = self.conv2(self.relu2(self.bn2(self.conv1(activated))))
        shortcut = x if self.convShortcut is None else self.convShortcut(activated)
        return out + shortcut  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Blocks of one width; exists for the public checkpoints' names (``block1.layer.0``)."""

    def __init__(self, inputs: int, width: int, blocks: int, stride: int) -> None:
        super().__init__()
        first = PreActivationBlock(inputs, width, stride)
        self.layer = nn.Sequential(first, *(PreActivationBlock(width, width, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """The blocks one after the other."""
        return self.layer(x)  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """A convolution, three stages, a last norm and ReLU, an average, a linear layer."""

    def __init__(self, depth: int, widening: int, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        blocks = (depth - 4) // 6  # a stage; two convolutions each, in three stages
        narrow, middle, wide = (width * widening for width in (16, 32, 64))
        self.conv1 = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        self.block1 = Stage(16, narrow, blocks, 1)
        self.block2 = Stage(narrow, middle, blocks, 2)
        self.block3 = Stage(middle, wide, blocks, 2)
        self.bn1 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(wide, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width)."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(self.flatten(self.pool(self.relu(self.bn1(x)))))  # type: ignore[no-any-return]


def wrn16_2(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE) -> nn.Module:
    """Wide ResNet 16-2."""
    return WideResNet(16, 2, classes, image_shape)
