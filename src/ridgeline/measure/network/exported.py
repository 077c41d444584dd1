"""Count an exported program (`.pt2`) as its graph runs, with the layers that it was exported from.

The program computes for real, on the CPU and on an image of zeros: its shapes are those that it was
exported with, and what it holds are weights anyway. A fixed batch is divided out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import InputError, in_words
from ridgeline.measure.network.count import merge_equal
from ridgeline.measure.network.program import load_program
from ridgeline.measure.network.recorder import FusedFunctions, Recorder
from ridgeline.models.vision.network import VisionNetwork, VisionOperator


def count_exported(path: Path, image_size: tuple[int, int] | None = None) -> VisionNetwork:
    """The operators of an exported program for one image; another size needs a dynamic export."""
    program = load_program(path)
    shape = _image_shape(program, path)
    size = image_size or (shape[2], shape[3])
    image = torch.zeros(shape[0], shape[1], *size)
    module = program.module()
    recorder = Recorder([image])
    try:
        with torch.no_grad(), FusedFunctions(recorder), recorder:
            _Layers(module, recorder).run(image)
    except Exception as error:  # guards of the export
        raise InputError(
            f"{path} does not take an image of {size[0]}x{size[1]}: {in_words(error)}"
        ) from error
    return VisionNetwork(
        name=path.stem,
        image_size=size,
        operators=tuple(merge_equal(_per_image(one, shape[0]) for one in recorder.operators)),
        parameters=sum(one.numel() for one in program.parameters()),
    )


class _Layers(torch.fx.Interpreter):  # type: ignore[misc]  # torch is Any to the type checker
    """Runs a graph and tells the recorder which layer each node came from."""

    def __init__(self, module: Any, recorder: Recorder) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._recorder = recorder

    def run_node(self, n: Any) -> Any:
        stack = list((n.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        self._recorder.paths.append(path.removeprefix("L['self']").lstrip("."))
        try:
            return super().run_node(n)
        finally:
            self._recorder.paths.pop()


def _image_shape(program: Any, path: Path) -> list[int]:
    """Sizes of the one input; dynamic ones at the example's value."""
    names = program.graph_signature.user_inputs
    nodes = {node.name: node for node in program.graph.nodes}
    values = [nodes[name].meta["val"] for name in names if name in nodes]
    images = [one for one in values if isinstance(one, torch.Tensor) and one.dim() == 4]
    if len(values) != 1 or len(images) != 1:
        raise InputError(f"{path} takes {len(values)} inputs; it must take one batch of images")
    hints = (getattr(one, "node", None) for one in images[0].shape)
    return [
        int(one) if hint is None else int(hint.hint)
        for one, hint in zip(images[0].shape, hints, strict=True)
    ]


def _per_image(one: VisionOperator, batch: int) -> VisionOperator:
    """One image's share of an operator over `batch` of them."""
    if batch == 1:
        return one
    rows = one.kind in ("linear",) and one.in_size[1] == 1
    in_size = (max(1, one.in_size[0] // batch), 1) if rows else one.in_size
    return replace(
        one,
        macs=one.macs // batch,
        input_elements=one.input_elements // batch,
        output_elements=one.output_elements // batch,
        in_size=in_size,
        out_size=in_size if rows else one.out_size,
        groups=max(1, one.groups // batch) if one.kind in ("product", "softmax") else one.groups,
    )
