"""A network for images of another size, from its operators at two.

Every number of an operator is one of four functions of the image: constant; linear in its height or
width (the sizes of planes, rounded up as strides round); linear in its area (tokens, windows, and
what is read, written or multiplied over them); or the square of such a one (attention over all
tokens: `(a + b · area)²`). Two sizes determine each. At sizes that the network's strides, patches
and windows divide this is exact; elsewhere planes round up, while windows that the network would
pad with empty tokens count as the fraction that is used.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.models.vision.network import VisionNetwork, VisionOperator

EPSILON = 1e-6
"""Keeps a size that is a whole number but for rounding from being rounded up."""


def resize(
    small: VisionNetwork, large: VisionNetwork, image_size: tuple[int, int]
) -> VisionNetwork:
    """The network at `image_size` from the same network at two others, operator by operator."""
    scale = Scale(small.image_size, large.image_size, image_size)
    return replace(
        small,
        image_size=image_size,
        operators=tuple(
            _resized(one, other, scale)
            for one, other in zip(small.operators, large.operators, strict=True)
        ),
        parameters=scale.by_area(small.parameters, large.parameters),
    )


class Scale:
    """Where an image lies between two others: 0 at the first, 1 at the second."""

    def __init__(
        self, small: tuple[int, int], large: tuple[int, int], wanted: tuple[int, int]
    ) -> None:
        self._sides = tuple(
            (want - low) / (high - low)
            for low, high, want in zip(small, large, wanted, strict=True)
        )
        areas = [math.prod(size) for size in (small, large, wanted)]
        self._area = (areas[2] - areas[0]) / (areas[1] - areas[0])
        self._most = areas[1] / areas[0]

    def plane(self, small: tuple[int, int], large: tuple[int, int]) -> tuple[int, int]:
        """Height and width of a plane, rounded up; of a sequence, its tokens and 1."""
        if small[1] == large[1] == 1:
            return self.by_area(small[0], large[0]), 1
        if small == large:
            return small
        height, width = (
            max(1, math.ceil(low + (high - low) * where - EPSILON))
            for low, high, where in zip(small, large, self._sides, strict=True)
        )
        return height, width

    def by_area(self, small: int, large: int) -> int:
        """A number that is constant, linear in the area, or the square of such a one."""
        if small == large:
            return small
        if small > 0 and large / small > self._most * (1 + EPSILON):
            low, high = math.sqrt(small), math.sqrt(large)
            return max(0, round((low + (high - low) * self._area) ** 2))
        return max(0, round(small + (large - small) * self._area))


def _resized(one: VisionOperator, other: VisionOperator, scale: Scale) -> VisionOperator:
    in_size = scale.plane(one.in_size, other.in_size)
    out_size = scale.plane(one.out_size, other.out_size)
    read = _over(one.input_elements, other.input_elements, one.in_size, other.in_size, in_size)
    written = _over(
        one.output_elements, other.output_elements, one.out_size, other.out_size, out_size
    )
    macs = _over(one.macs, other.macs, one.out_size, other.out_size, out_size)
    return replace(
        one,
        in_size=in_size,
        out_size=out_size,
        kernel=scale.plane(one.kernel, other.kernel),
        stride=scale.plane(one.stride, other.stride),
        in_channels=scale.by_area(one.in_channels, other.in_channels),
        out_channels=scale.by_area(one.out_channels, other.out_channels),
        groups=scale.by_area(one.groups, other.groups),
        weight_elements=scale.by_area(one.weight_elements, other.weight_elements),
        input_elements=read or scale.by_area(one.input_elements, other.input_elements),
        output_elements=written or scale.by_area(one.output_elements, other.output_elements),
        macs=macs or scale.by_area(one.macs, other.macs),
    )


def _over(
    small: int,
    large: int,
    first: tuple[int, int],
    second: tuple[int, int],
    wanted: tuple[int, int],
) -> int:
    """A number that goes with its plane's area, there; 0 where it does not."""
    if (
        first[1] <= 1
        or not math.prod(first)
        or small * math.prod(second) != large * math.prod(first)
    ):
        return 0
    return round(small * math.prod(wanted) / math.prod(first))
