"""Adapters of a row of published runs: those that its columns state, else usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.cost.training.workload import LowRankAdapters, Stack
from ridgeline.errors import InputError
from ridgeline.plan.notes import TrainingNote
from ridgeline.plan.table_cells import positive, whole
from ridgeline.plan.training.trained import Trained, adapters_of
from ridgeline.records.recipe_compression import RecipeAdapter

USUAL_RANK = 16
"""Rank of adapters whose row states none."""
EIGHT_BITS = ("fp8", "mxfp8")
"""Precisions whose matmuls take weights of 8 bits."""


def adapters_of_row(
    cells: Mapping[str, str], note: TrainingNote, software: Stack, precision: str
) -> LowRankAdapters:
    """The adapters that the columns state, or usual ones where the note says that there are some.

    Usual ones stand beside every linear layer; NeMo's fast recipes adapt queries, keys and values
    alone (`finetune_performance_optimizations`: `target_modules = ['linear_qkv']`). In 8 bits these
    keep weights that are not trained in 8 bits alone (`fp8_params`).
    """
    found = _beside_frozen(cells, note, software)
    if software.modules and precision in EIGHT_BITS and found.weight_bytes == 2.0:
        return replace(found, weight_bytes=1.0)
    return found


def _beside_frozen(
    cells: Mapping[str, str], note: TrainingNote, software: Stack
) -> LowRankAdapters:
    """The same of frozen weights in 16 bits, or in four."""
    kind = cells.get("adapter", "").lower()
    if kind:
        stated = RecipeAdapter(
            kind=kind,  # type: ignore[arg-type]
            rank=whole(cells, "adapter_rank") or USUAL_RANK,
            dropout=_dropout(cells.get("adapter_dropout", "")),
            targets=tuple(cells.get("adapter_targets", "").split()),
        )
        found = adapters_of(Trained(adapter=stated))
        if kind != "qlora":
            return found
        tables = 4.0 if software.widens_tables else found.table_bytes
        return replace(found, saves_inputs=note.saves_inputs, table_bytes=tables)
    if not note.adapters:
        return LowRankAdapters()
    if software.modules:
        return LowRankAdapters(rank=USUAL_RANK, output=0.0, gate=0.0, up=0.0, down=0.0)
    return LowRankAdapters(rank=USUAL_RANK)


def _dropout(text: str) -> float:
    share = positive(text) if text.strip("0.") else 0.0
    if share is None or share >= 1.0:
        raise InputError(f"adapter_dropout is {text!r}; it must be a share from 0 to below 1")
    return share
