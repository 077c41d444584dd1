"""ResNet (He et al. 2015, arXiv 1512.03385, table 1), in the variant that everyone trains.

The stride of a bottleneck stands on its 3 by 3 convolution ("v1.5": torchvision, Hugging Face,
MLPerf) instead of the first pointwise one; parameters are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.models.convnet import Builder
from ridgeline.models.convnets import Network

STAGES = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
}
"""Depth → kind of block, and blocks in each of the four stages."""


def resnet(kind: str, depths: tuple[int, ...]) -> Callable[[Builder], None]:
    """Stem, four stages of doubling width, mean, 1000 classes."""

    def build(net: Builder) -> None:
        net.conv("stem", 64, kernel=7, stride=2)
        net.pool("stem.pool", kernel=3, stride=2)
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                _block(net, f"stage{stage + 1}.{block}", kind, 64 << stage, stride)
        net.global_pool("pool")
        net.linear("classifier", 1000)

    return build


def _block(net: Builder, name: str, kind: str, width: int, stride: int) -> None:
    channels, size = net.channels, net.size
    if kind == "basic":
        net.conv(f"{name}.conv1", width, kernel=3, stride=stride)
        net.conv(f"{name}.conv2", width, kernel=3, activation=False)
    else:
        net.conv(f"{name}.conv1", width)
        net.conv(f"{name}.conv2", width, kernel=3, stride=stride)
        net.conv(f"{name}.conv3", 4 * width, activation=False)
    if stride > 1 or channels != net.channels:
        net.side(f"{name}.shortcut", channels, size, net.channels, stride=stride)
    net.add(f"{name}.add")
    net.activation(name)


NETWORKS = {
    f"ResNet-{depth}": Network(build=resnet(kind, depths))
    for depth, (kind, depths) in STAGES.items()
}
