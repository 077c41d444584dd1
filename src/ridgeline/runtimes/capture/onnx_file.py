"""A captured program as an ONNX file, for every runtime that reads one."""

from __future__ import annotations

from pathlib import Path

import torch

from ridgeline.runtimes.capture.inverses import without_small_inverses
from ridgeline.runtimes.capture.onnx_notes import drop_shapes, drop_sources
from ridgeline.runtimes.capture.program import Captured
from ridgeline.runtimes.capture.remainders import without_free_remainders

_LARGEST_BYTES = 1_900_000_000
"""The most bytes of weights inside of the file: a protobuf message ends at 2 GiB."""


def write_onnx(captured: Captured, path: Path) -> None:
    """Write it by `torch.onnx.export(dynamo=True)`; large weights come in a file beside it."""
    program = torch.onnx.export(
        without_free_remainders(without_small_inverses(captured.program)),
        dynamo=True,
        verbose=False,
        input_names=[input_name(i) for i in range(len(captured.tensors))],
    )
    assert program is not None
    weights = sum(value.nbytes for value in captured.program.state_dict.values())
    if captured.free:
        drop_shapes(program)
    drop_sources(program).save(path, external_data=weights > _LARGEST_BYTES)


def input_name(index: int) -> str:
    """The name in the file of the tensor at `index` of the call.

    >>> input_name(3), index_of(input_name(3))
    ('input_3', 3)
    """
    return f"input_{index}"


def index_of(name: str) -> int:
    """Which tensor of the call an input takes; one that is not needed is not in the file."""
    return int(name.rpartition("_")[2])
