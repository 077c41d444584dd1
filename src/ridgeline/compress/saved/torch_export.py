"""A model as a torch.export package (`.pt2`), which no model code is needed to run.

    program = torch.export.load("model.pt2").module()
    logits = program(input_ids)            # [batch, tokens] int64, both free; tokens at least 2

Quantised weights stay in their levels; the graph turns them into numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.compress.saved.whole_model import check_equal, example, free_shapes, whole_model
from ridgeline.errors import InputError, in_words
from ridgeline.runtimes.capture.quiet import silence


def export(directory: Path, out: Path) -> None:
    """Write a model, dense or compressed, as one package that was run once.

    Raises:
        InputError: The model cannot be read, or torch.export cannot follow it.
        RidgelineError: The package computes something else.
    """
    model = whole_model(directory)
    tolerance = 1e-5 if model.dtype == torch.float32 else 2e-2

    def check(loaded: nn.Module) -> None:
        check_equal(model, loaded, str(out), tolerance)

    package(str(directory), model, example(model), free_shapes(), out, check)


def package(
    what: str,
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...],
    free: Any,
    out: Path,
    check: Callable[[nn.Module], None],
) -> None:
    """Write any module of tensors; `out` is whole, and checked, or not there.

    Args:
        what: Is exported, for a refusal.
        model: Whole, in evaluation mode.
        inputs: An example.
        free: Its sizes that stay free, as torch.export takes them.
        out: The file.
        check: Raises where what was read back is not the model.

    Raises:
        InputError: torch.export cannot follow the model.
    """
    try:
        program = torch.export.export(
            model, (inputs,) if isinstance(inputs, Tensor) else inputs, dynamic_shapes=free
        )
    except Exception as error:  # whatever model code and the tracer raise
        raise InputError(
            f"{what}: torch.export cannot follow this model: {in_words(error)}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.stem}.saving.pt2")
    try:
        torch.export.save(program, aside)
        with silence():  # torch 2.11 warns of the bytes that it reads
            read = torch.export.load(aside).module()
        check(read)
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)
