"""One operator of a preset as a row of text, at one image size or at two.

A row holds what cannot be derived: blank sizes and channels of the output are those of the input,
blank traffic is one image of them, blank MACs are those of its weights' shape. The columns that end
in `2` are the operator at the preset's second, larger image size; blank where an image-like
operator grew with the image and all else stayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from ridgeline.models.vision.network import Kind, VisionOperator

COLUMNS = (
    "name", "kind", "function", "after", "count", "in_channels", "out_channels", "in_size",
    "out_size", "kernel", "stride", "groups", "weights", "read", "written", "macs",
)  # fmt: skip
GROWING = (
    "in_channels2", "out_channels2", "in_size2", "out_size2", "kernel2", "stride2", "groups2",
    "weights2", "read2", "written2", "macs2",
)  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)


def write_row(one: VisionOperator, larger: VisionOperator | None, ratio: float) -> list[str]:
    """The cells of an operator, and of the same one at an image `ratio` as large each way."""
    cells = [
        one.name,
        one.kind,
        _unless(one.function, one.kind),
        one.after,
        _unless(one.count, 1),
        _unless(one.in_channels, 0),
        _unless(one.out_channels, one.in_channels),
        _size(one.in_size, (1, 1)),
        _size(one.out_size, one.in_size),
        _size(one.kernel, (1, 1)),
        _size(one.stride, (1, 1)),
        _unless(one.groups, 1),
        _unless(one.weight_elements, 0),
        _unless(one.input_elements, _image(one)),
        _unless(one.output_elements, _result(one)),
        _unless(one.macs, _products(one)),
    ]
    if larger is None:
        return _stripped(cells)
    rule = _grown(one, ratio)
    cells += [
        _unless(larger.in_channels, rule.in_channels),
        _unless(larger.out_channels, rule.out_channels),
        _size(larger.in_size, rule.in_size),
        _size(larger.out_size, rule.out_size),
        _size(larger.kernel, rule.kernel),
        _size(larger.stride, rule.stride),
        _unless(larger.groups, rule.groups),
        _unless(larger.weight_elements, rule.weight_elements),
    ]
    like = replace(
        one,
        in_channels=larger.in_channels,
        out_channels=larger.out_channels,
        in_size=larger.in_size,
        out_size=larger.out_size,
        kernel=larger.kernel,
        groups=larger.groups,
    )
    cells += [
        _unless(larger.input_elements, _scaled(one.input_elements, _image(one), _image(like))),
        _unless(larger.output_elements, _scaled(one.output_elements, _result(one), _result(like))),
        _unless(larger.macs, _scaled(one.macs, _products(one), _products(like))),
    ]
    return _stripped(cells)


def read_row(cells: Sequence[str], ratio: float) -> tuple[VisionOperator, VisionOperator]:
    """The operator at the preset's first image size and at its second, `ratio` as large.

    >>> one, larger = read_row(["stem", "conv", "", "", "", "3", "64", "8x8", "4x4", "3x3"], 2.0)
    >>> one.macs, larger.in_size, larger.macs
    (27648, (16, 16), 110592)
    """
    cell = dict(zip(COLUMNS + GROWING, cells, strict=False))
    in_channels = int(cell.get("in_channels") or 0)
    in_size = _pair(cell.get("in_size"), (1, 1))
    kind = next(kind for kind in KINDS if kind == cell["kind"])
    one = VisionOperator(
        name=cell["name"],
        kind=kind,
        function=cell.get("function") or kind,
        after=cell.get("after") or "",
        count=int(cell.get("count") or 1),
        in_channels=in_channels,
        out_channels=int(cell.get("out_channels") or in_channels),
        in_size=in_size,
        out_size=_pair(cell.get("out_size"), in_size),
        kernel=_pair(cell.get("kernel"), (1, 1)),
        stride=_pair(cell.get("stride"), (1, 1)),
        groups=int(cell.get("groups") or 1),
        weight_elements=int(cell.get("weights") or 0),
        input_elements=0,
        output_elements=0,
    )
    one = replace(
        one,
        input_elements=_number(cell.get("read"), _image(one)),
        output_elements=_number(cell.get("written"), _result(one)),
        macs=_number(cell.get("macs"), _products(one)),
    )
    rule = _grown(one, ratio)
    larger = replace(
        rule,
        in_channels=_number(cell.get("in_channels2"), rule.in_channels),
        out_channels=_number(cell.get("out_channels2"), rule.out_channels),
        in_size=_pair(cell.get("in_size2"), rule.in_size),
        out_size=_pair(cell.get("out_size2"), rule.out_size),
        kernel=_pair(cell.get("kernel2"), rule.kernel),
        stride=_pair(cell.get("stride2"), rule.stride),
        groups=_number(cell.get("groups2"), rule.groups),
        weight_elements=_number(cell.get("weights2"), rule.weight_elements),
    )
    larger = replace(
        larger,
        input_elements=_number(
            cell.get("read2"), _scaled(one.input_elements, _image(one), _image(larger))
        ),
        output_elements=_number(
            cell.get("written2"), _scaled(one.output_elements, _result(one), _result(larger))
        ),
        macs=_number(cell.get("macs2"), _scaled(one.macs, _products(one), _products(larger))),
    )
    return one, larger


def _grown(one: VisionOperator, ratio: float) -> VisionOperator:
    """What an image-like operator does: its height and width grow, its channels stay."""
    return replace(one, in_size=_times(one.in_size, ratio), out_size=_times(one.out_size, ratio))


def _times(size: tuple[int, int], ratio: float) -> tuple[int, int]:
    if size[1] == 1:
        return size
    return round(size[0] * ratio), round(size[1] * ratio)


def _image(one: VisionOperator) -> int:
    return one.in_channels * one.in_size[0] * one.in_size[1] * _many(one)


def _result(one: VisionOperator) -> int:
    return one.out_channels * one.out_size[0] * one.out_size[1] * _many(one)


def _many(one: VisionOperator) -> int:
    return 1 if one.kind == "conv" else one.groups


def _products(one: VisionOperator) -> int:
    """Multiply-accumulates that its shape implies."""
    if one.kind == "conv":
        window = one.kernel[0] * one.kernel[1]
        return _result(one) * (one.in_channels // one.groups) * window
    if one.kind in ("linear", "product"):
        return _result(one) * one.in_channels
    return 0


def _scaled(value: int, before: int, after: int) -> int:
    return value * after // before if before else value


def _number(cell: str | None, blank: int) -> int:
    return int(cell) if cell else blank


def _unless(value: int | str, blank: int | str) -> str:
    return "" if value == blank else str(value)


def _size(value: tuple[int, int], blank: tuple[int, int]) -> str:
    return "" if value == blank else f"{value[0]}x{value[1]}"


def _pair(cell: str | None, blank: tuple[int, int]) -> tuple[int, int]:
    if not cell:
        return blank
    height, _, width = cell.partition("x")
    return int(height), int(width)


def _stripped(cells: list[str]) -> list[str]:
    while cells and not cells[-1]:
        cells.pop()
    return cells
