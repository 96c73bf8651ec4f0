"""VGG for CIFAR (Simonyan and Zisserman 2015), with batch norm.

``vgg16``: VGG-16 for CIFAR-10: 13 convolutions with batch norm, linear layers of 512 in place of 4096
``vgg16-c100``: VGG-16 variant for CIFAR-100: three more convolutions in place of the two hidden linear layers

``vgg16`` is that of Louizos et al. 2017 and Dai et al. 2018 (313.7M multiplications at 3×32×32),
``vgg16-c100`` that of Liu et al. 2017 (398.2M): 16 convolutions, an average, one linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from snncompress.errors import ModelError

INPUT_SHAPE = (3, 32, 32)
HIDDEN = 512
# Widths of the convolutions of each stage; a max pooling stands between stages.
VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
VGG16_C100_STAGES = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


class VGG(nn.Module):
    """Features (convolutions, norms, poolings) and a classifier on the flattened last map."""

    def __init__(self, features: nn.Sequential, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.flatten = nn.Flatten()
        self.classifier = classifier
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width)."""
        return self.classifier(self.flatten(self.features(x)))  # type: ignore[no-any-return]


def vgg16(classes: int = 10, image_shape: Sequence[int] = INPUT_SHAPE) -> nn.Module:
    """VGG-16 with batch norm and 512-wide hidden linear layers."""
    channels, height, width = image_shape
    _check_size("vgg16", height, width, least=32)
    features = [*_stages(channels, VGG16_STAGES), nn.MaxPool2d(2)]
    classifier = nn.Sequential(
        nn.Linear(512 * (height // 32) * (width // 32), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes),
    )
    return VGG(nn.Sequential(*features), classifier)


def vgg16_c100(classes: int = 100, image_shape: Sequence[int] = INPUT_SHAPE) -> nn.Module:
    """VGG-16 with three more convolutions in place of the hidden linear layers."""
    channels, height, width = image_shape
    _check_size("vgg16-c100", height, width, least=16)
    features = [*_stages(channels, VGG16_C100_STAGES), nn.AdaptiveAvgPool2d(1)]
    return VGG(nn.Sequential(*features), nn.Linear(512, classes))


def _stages(channels: int, stages: Sequence[Sequence[int]]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for index, stage in enumerate(stages):
        if index > 0:
            layers.append(nn.MaxPool2d(2))
        for width in stage:
            # No bias: the batch norm that follows would take it away again.
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
    return layers


def _check_size(name: str, height: int, width: int, least: int) -> None:
    if min(height, width) < least:
        raise ModelError(f"{name} needs images of at least {least}×{least} pixels, not {height}×{width}")
