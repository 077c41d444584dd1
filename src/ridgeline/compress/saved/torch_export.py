"""torch.export packages (`.pt2`): the graph and its weights, which no model code is needed to run.

    program = torch.export.load("model.pt2").module()
    logits = program(input_ids)            # [batch, tokens] int64, both free; tokens at least 2

Quantised weights stay in their levels; the graph turns them into numbers.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ridgeline.compress.saved.whole_model import check_equal, example, free_shapes, whole_model
from ridgeline.errors import InputError, in_words


def export(directory: Path, out: Path) -> None:
    """Write a model, dense or compressed, as one package that was run once.

    Raises:
        InputError: The model cannot be read, or torch.export cannot follow it.
        RidgelineError: The package computes something else.
    """
    model = whole_model(directory)
    try:
        program = torch.export.export(model, (example(model),), dynamic_shapes=free_shapes())
    except Exception as error:  # whatever model code and the tracer raise
        raise InputError(
            f"{directory}: torch.export cannot follow this model: {in_words(error)}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.stem}.saving.pt2")
    try:
        torch.export.save(program, aside)
        loaded = torch.export.load(aside).module()
        check_equal(model, loaded, str(out), 1e-5 if model.dtype == torch.float32 else 2e-2)
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)
