"""What sees: an encoder in the manner of EfficientNet, and the heads on what it and the grid hold.

Shapes: N images, C channels, H x W cells; images are (N, 3, 64, 176), features (N, 64, 8, 22), the
grid seen from above (1, C, 64, 32) with x along its third dimension.
"""

import torch
from torch import nn

FEATURES = 64
DEPTHS = 32
OBJECT_CHANNELS = 24
ROAD_CHANNELS = 16
MAPS = ("heat", "offset x", "offset y", "log length", "log width")
"""Channels of the object head."""


class SqueezeExcitation(nn.Module):
    """Channels weighted by what the whole image holds (Hu et al., arXiv:1709.01507)."""

    def __init__(self, channels, squeezed):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.SiLU()

    def forward(self, x):
        weight = x.mean(dim=(2, 3), keepdim=True)
        weight = self.excite(self.activation(self.squeeze(weight)))
        return x * torch.sigmoid(weight)


class MBConv(nn.Module):
    """Inverted residual with squeeze and excitation (Tan and Le, arXiv:1905.11946, section 4)."""

    def __init__(self, inputs, outputs, kernel, stride, expansion):
        super().__init__()
        inner = inputs * expansion
        layers = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU()]
        layers += [
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.SiLU(),
            SqueezeExcitation(inner, max(inputs // 4, 4)),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.residual else y


class Encoder(nn.Module):
    """Images (N, 3, 64, 176) to features (N, 64, 8, 22): strides 8 and 16, the latter brought up to
    the former as lift-splat does."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()
        )
        self.fine = nn.Sequential(
            MBConv(16, 16, 3, 1, 1),
            MBConv(16, 24, 3, 2, 4),
            MBConv(24, 24, 3, 1, 4),
            MBConv(24, 40, 5, 2, 4),
            MBConv(40, 40, 5, 1, 4),
        )
        self.coarse = nn.Sequential(MBConv(40, 80, 3, 2, 4), MBConv(80, 80, 5, 1, 3))
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.neck = nn.Sequential(
            nn.Conv2d(120, FEATURES, 1, bias=False), nn.BatchNorm2d(FEATURES), nn.SiLU()
        )

    def forward(self, images):
        fine = self.fine(self.stem(images))
        coarse = self.up(self.coarse(fine))
        return self.neck(torch.cat([fine, coarse], dim=1))


class DepthHead(nn.Module):
    """Features to a distribution over 32 depths per cell, as logits (N, 32, 8, 22)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(FEATURES, 48, 3, padding=1), nn.SiLU(), nn.Conv2d(48, DEPTHS, 1)
        )

    def forward(self, features):
        return self.layers(features)


def _grid_layers(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, hidden, 3, padding=1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.SiLU(),
        nn.Conv2d(hidden, hidden, 5, padding=2, groups=hidden, bias=False),
        nn.Conv2d(hidden, hidden, 1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.SiLU(),
        nn.Conv2d(hidden, outputs, 1),
    )


class ObjectHead(nn.Module):
    """The objects' grid (1, 24, 64, 32) to the maps of a centre detector (1, 5, 64, 32), the first
    of them logits (CenterNet, Zhou et al., arXiv:1904.07850)."""

    def __init__(self):
        super().__init__()
        self.layers = _grid_layers(OBJECT_CHANNELS, 32, len(MAPS))
        nn.init.constant_(self.layers[-1].bias, 0.0)
        with torch.no_grad():
            self.layers[-1].bias[0] = -4.0

    def forward(self, grid):
        return self.layers(grid)


class RoadHead(nn.Module):
    """The road's grid (1, 16, 64, 32) to logits of drivable ground (1, 1, 64, 32)."""

    def __init__(self):
        super().__init__()
        self.down = nn.AvgPool2d(2)
        self.layers = _grid_layers(ROAD_CHANNELS, 24, 8)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, grid):
        return self.last(self.up(self.layers(self.down(grid))))
