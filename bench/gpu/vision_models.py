"""The networks of `bench/gpu/vision.py`, with random weights: nothing is downloaded.

ResNet-50 and ViT-S/16 from transformers' configurations; MobileNetV3-L, which transformers does not
have, after Howard et al., "Searching for MobileNetV3", 2019, table 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

LARGE = (
    (3, 16, 16, False, nn.ReLU, 1),
    (3, 64, 24, False, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2),
    (5, 120, 40, True, nn.ReLU, 1),
    (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2),
    (3, 200, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 480, 112, True, nn.Hardswish, 1),
    (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2),
    (5, 960, 160, True, nn.Hardswish, 1),
    (5, 960, 160, True, nn.Hardswish, 1),
)
"""Each block: kernel, expanded and output channels, squeeze-and-excite, activation, stride."""


class Logits(nn.Module):
    """A model of transformers, from images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.model(images).logits


class SqueezeExcite(nn.Module):
    """Channels weighed by their own means, through a bottleneck of a quarter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = max(8, (channels // 4 + 4) // 8 * 8)
        self.down, self.up = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Like `x`."""
        means = x.mean((2, 3), keepdim=True)
        return x * nn.functional.hardsigmoid(self.up(self.down(means).relu()))


class Inverted(nn.Module):
    """Expand, filter each channel alone, project; added to its input where shapes agree."""

    def __init__(self, taken: int, row: tuple[int, int, int, bool, type, int]) -> None:
        super().__init__()
        kernel, wide, given, squeezed, activation, stride = row
        self.adds = stride == 1 and taken == given
        self.layers = nn.Sequential(
            *(convolution(taken, wide, 1, 1, activation) if wide != taken else ()),
            *convolution(wide, wide, kernel, stride, activation, groups=wide),
            *([SqueezeExcite(wide)] if squeezed else ()),
            *convolution(wide, given, 1, 1, None),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width where the stride is 2."""
        return x + self.layers(x) if self.adds else self.layers(x)


def convolution(
    taken: int, given: int, kernel: int, stride: int, activation: type | None, groups: int = 1
) -> list[nn.Module]:
    """Convolution, BatchNorm and activation."""
    layer = nn.Conv2d(taken, given, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(given), *([activation()] if activation else [])]


def mobilenet_v3(blocks: int = len(LARGE), classes: int = 1000) -> nn.Module:
    """MobileNetV3-L, 5.48 M parameters; or its first blocks alone."""
    layers, taken = convolution(3, 16, 3, 2, nn.Hardswish), 16
    for row in LARGE[:blocks]:
        layers.append(Inverted(taken, row))
        taken = row[2]
    layers += [*convolution(taken, 960, 1, 1, nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, classes))


def resnet_50() -> nn.Module:
    """The configuration's defaults: 25.6 M parameters."""
    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=1000)))


def vit_s() -> nn.Module:
    """ViT-S/16: width 384, 12 layers, 6 heads; 22.05 M parameters."""
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        num_labels=1000,
    )  # fmt: skip
    return Logits(ViTForImageClassification(config))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-50": resnet_50,
    "MobileNetV3-L": mobilenet_v3,
    "ViT-S/16": vit_s,
}
SMALL: dict[str, Callable[[], nn.Module]] = {
    "4 blocks of MobileNetV3-L": lambda: mobilenet_v3(4, 10),
}


def made(build: Callable[[], nn.Module], images: Tensor) -> nn.Module:
    """A model in evaluation mode; its BatchNorm statistics are those of the images.

    Untrained statistics would let activations grow past what half precision holds.
    """
    torch.manual_seed(0)
    model = build()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean over the batches
    model.to(images.device).train()
    with torch.no_grad():
        model(images)
    return model.eval()
