"""A tiny convolutional run with batch norm and dropout, and labelled images for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from snncompress.data.dataset import Normalization, TensorImages
from snncompress.run import Run, wrap

SHAPE = (3, 12, 12)
CLASSES = ("cat", "dog", "Öre", "ü")


class Net(nn.Module):
    """Batch norm after a convolution and after a linear layer, a residual addition, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.hidden = nn.Linear(32, 16)
        self.last_norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        x = self.pool((x + self.inner(x)).relu()).flatten(1)
        return self.head(self.dropout(self.last_norm(self.hidden(x)).relu()))


def tiny_run() -> Run:
    """Not trained, but its batch norms have statistics of their own."""
    torch.manual_seed(0)
    model = Net()
    for _ in range(20):
        model(torch.randn(50, *SHAPE))
    normalization = Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    run = wrap(model, SHAPE, classes=CLASSES, normalization=normalization)
    return replace(run, metrics={"test": {"error": 1.25}})


def tiny_images(run: Run, count: int = 40) -> TensorImages:
    """Images whose labels are the run's own answers, but for one in five."""
    generator = torch.Generator().manual_seed(1)
    colours = torch.rand(count, 3, 1, 1, generator=generator)  # noise alone would look all alike to the network
    images = 0.8 * colours + 0.2 * torch.rand(count, *SHAPE, generator=generator)
    with torch.no_grad():
        labels = run.model.eval()(run.normalization(images)).argmax(1)
    labels[::5] = (labels[::5] + 1) % len(CLASSES)
    return TensorImages(images, labels, device=torch.device("cpu"))
