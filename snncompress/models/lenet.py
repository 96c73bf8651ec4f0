"""LeNets, the classic networks for MNIST (LeCun et al. 1998).

``lenet5``: LeNet-5-Caffe for MNIST: two convolutions (20, 50) and two linear layers (500, classes)
``lenet300``: LeNet-300-100 for MNIST: linear layers of 300 and 100 neurons

LeNet-5-Caffe is that of Caffe's MNIST example with a ReLU after both convolutions too, as in the pruning
literature: 2,293,000 multiplications and 431,080 weights at 1×28×28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from snncompress.errors import ModelError

INPUT_SHAPE = (1, 28, 28)


class LeNet5(nn.Module):
    """LeNet-5-Caffe: conv 20@5×5, pool, conv 50@5×5, pool, fc 500, fc classes."""

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < 16:
            raise ModelError(f"lenet5 needs images of at least 16×16 pixels, not {height}×{width}")
        # Each 5×5 convolution without padding takes 4 pixels away, each pooling halves.
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(50 * rows * columns, 500)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(500, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width)."""
        x = self.relu1(self.pool1(self.conv1(x)))  # the same as pooling last, with a quarter of the rectifying
        x = self.relu2(self.pool2(self.conv2(x)))
        x = self.relu3(self.fc1(self.flatten(x)))
        return self.fc2(x)  # type: ignore[no-any-return]


class LeNet300(nn.Module):
    """LeNet-300-100: fc 300, fc 100, fc classes."""

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(math.prod(image_shape), 300)
        self.relu1 = nn.ReLU()
        self.fc2 = nn.Linear(300, 100)
        self.relu2 = nn.ReLU()
        self.fc3 = nn.Linear(100, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width)."""
        x = self.relu1(self.fc1(self.flatten(x)))
        return self.fc3(self.relu2(self.fc2(x)))  # type: ignore[no-any-return]


def lenet5(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE) -> nn.Module:
    """LeNet-5-Caffe."""
    return LeNet5(classes, image_shape)


def lenet300(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE) -> nn.Module:
    """LeNet-300-100."""
    return LeNet300(classes, image_shape)
