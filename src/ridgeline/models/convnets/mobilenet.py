"""The family of MobileNets: V1 (1704.04861, table 1), V2 (1801.04381, table 2), V3 (1905.02244).

The rows of V3 are tables 1 and 2 of its paper.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.models.convnet import Builder
from ridgeline.models.convnets import Network

V1 = (
    # channels, stride of the depthwise convolution
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
V2 = (
    # expansion, channels, layers, stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
V3_LARGE = (
    # kernel, expanded, channels, squeeze-and-excitation, stride
    (3, 16, 16, False, 1),
    (3, 64, 24, False, 2),
    (3, 72, 24, False, 1),
    (5, 72, 40, True, 2),
    (5, 120, 40, True, 1),
    (5, 120, 40, True, 1),
    (3, 240, 80, False, 2),
    (3, 200, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 480, 112, True, 1),
    (3, 672, 112, True, 1),
    (5, 672, 160, True, 2),
    (5, 960, 160, True, 1),
    (5, 960, 160, True, 1),
)
V3_SMALL = (
    (3, 16, 16, True, 2),
    (3, 72, 24, False, 2),
    (3, 88, 24, False, 1),
    (5, 96, 40, True, 2),
    (5, 240, 40, True, 1),
    (5, 240, 40, True, 1),
    (5, 120, 48, True, 1),
    (5, 144, 48, True, 1),
    (5, 288, 96, True, 2),
    (5, 576, 96, True, 1),
    (5, 576, 96, True, 1),
)


def mobilenet_v1(net: Builder) -> None:
    """Pairs of depthwise and pointwise convolutions."""
    net.conv("stem", 32, kernel=3, stride=2)
    for pair, (out, stride) in enumerate(V1, 1):
        net.conv(f"pair{pair}.depthwise", net.channels, kernel=3, stride=stride, depthwise=True)
        net.conv(f"pair{pair}.pointwise", out)
    net.global_pool("pool")
    net.linear("classifier", 1000)


def mobilenet_v2(net: Builder) -> None:
    """The second MobileNet, of inverted bottlenecks."""
    net.conv("stem", 32, kernel=3, stride=2)
    for stage, (expansion, out, layers, stride) in enumerate(V2, 1):
        for layer in range(layers):
            inverted_bottleneck(
                net,
                f"stage{stage}.{layer}",
                out=out,
                expanded=net.channels * expansion,
                kernel=3,
                stride=1 if layer else stride,
            )
    net.conv("top", 1280)
    net.global_pool("pool")
    net.linear("classifier", 1000)


def mobilenet_v3(
    rows: tuple[tuple[int, int, int, bool, int], ...], head: int
) -> Callable[[Builder], None]:
    """Searched widths, squeeze-and-excitation in some blocks, a hidden layer behind the mean."""

    def build(net: Builder) -> None:
        net.conv("stem", 16, kernel=3, stride=2)
        for number, (kernel, expanded, out, squeeze, stride) in enumerate(rows, 1):
            inverted_bottleneck(
                net,
                f"block{number}",
                out=out,
                expanded=expanded,
                kernel=kernel,
                stride=stride,
                squeezed=round_to_eight(expanded / 4) if squeeze else 0,
            )
        net.conv("top", 6 * net.channels)
        net.global_pool("pool")
        net.linear("hidden", head)
        net.activation("hidden")
        net.linear("classifier", 1000)

    return build


def inverted_bottleneck(
    net: Builder,
    name: str,
    *,
    out: int,
    expanded: int,
    kernel: int,
    stride: int,
    squeezed: int = 0,
) -> None:
    """Widen, filter each channel, gate where `squeezed`, narrow; a shortcut where shapes allow."""
    channels = net.channels
    if expanded != channels:
        net.conv(f"{name}.expand", expanded)
    net.conv(f"{name}.depthwise", expanded, kernel=kernel, stride=stride, depthwise=True)
    if squeezed:
        net.squeeze_excite(f"{name}.squeeze", squeezed)
    net.conv(f"{name}.project", out, activation=False)
    if stride == 1 and channels == out:
        net.add(f"{name}.add")


def round_to_eight(width: float) -> int:
    """The nearest multiple of 8 that is at most a tenth below."""
    near = max(8, int(width + 4) // 8 * 8)
    return near if near >= 0.9 * width else near + 8


NETWORKS = {
    "MobileNet-V1": Network(build=mobilenet_v1),
    "MobileNet-V2": Network(build=mobilenet_v2),
    "MobileNet-V3-large": Network(build=mobilenet_v3(V3_LARGE, 1280)),
    "MobileNet-V3-small": Network(build=mobilenet_v3(V3_SMALL, 1024)),
}
