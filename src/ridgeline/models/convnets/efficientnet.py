"""EfficientNet B0 to B7 (Tan & Le 2019, arXiv 1905.11946, table 1; scaled as in section 3.3).

Widths are scaled and rounded to a multiple of 8 that is at most a tenth smaller; depths are scaled
and rounded up. Inverted bottlenecks with squeeze-and-excitation of a quarter of the block's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ridgeline.models.convnet import Builder
from ridgeline.models.convnets import Network
from ridgeline.models.convnets.mobilenet import inverted_bottleneck, round_to_eight

STAGES = (
    # expansion, kernel, stride, channels, layers
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""The stages of EfficientNet-B0, its table 1."""
SCALES = (
    # width, depth, image size
    (1.0, 1.0, 224),
    (1.0, 1.1, 240),
    (1.1, 1.2, 260),
    (1.2, 1.4, 300),
    (1.4, 1.8, 380),
    (1.6, 2.2, 456),
    (1.8, 2.6, 528),
    (2.0, 3.1, 600),
)
"""B0 to B7, from the authors' repository (tensorflow/tpu, efficientnet_builder.py)."""


def efficientnet(width: float, depth: float) -> Callable[[Builder], None]:
    """Stem, seven stages, a pointwise convolution, mean, 1000 classes."""

    def build(net: Builder) -> None:
        net.conv("stem", round_to_eight(32 * width), kernel=3, stride=2)
        for stage, (expansion, kernel, stride, channels, layers) in enumerate(STAGES, 1):
            for layer in range(math.ceil(layers * depth)):
                inverted_bottleneck(
                    net,
                    f"stage{stage}.{layer}",
                    out=round_to_eight(channels * width),
                    expanded=net.channels * expansion,
                    kernel=kernel,
                    stride=1 if layer else stride,
                    squeezed=net.channels // 4,
                )
        net.conv("top", round_to_eight(1280 * width))
        net.global_pool("pool")
        net.linear("classifier", 1000)

    return build


NETWORKS = {
    f"EfficientNet-B{number}": Network(build=efficientnet(width, depth), image_size=size)
    for number, (width, depth, size) in enumerate(SCALES)
}
