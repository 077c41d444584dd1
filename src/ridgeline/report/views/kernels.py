"""What `ridgeline kernels` shows: which C++ kernels are compiled, and where they lie."""

from __future__ import annotations

from typing import Any

from ridgeline import quantity
from ridgeline.report.document import Cell, Column, DataTable, ReportDocument, words


def kernels_document(found: dict[str, Any]) -> ReportDocument:
    """The libraries of kernels; `found` is the JSON document (`docs/reference/kernels.md`)."""
    rows: list[tuple[Cell, ...]] = []
    for name, made in found["libraries"].items():
        if made is None:
            rows.append((name, "–", "not yet", "", ""))
            continue
        size, took = quantity.binary_memory(made.bytes), quantity.seconds(made.seconds)
        threads = "torch's pool" if made.parallel else "one"
        rows.append((name, size, took, threads, made.compiler))
    columns = (
        words("library"),
        Column("size"),
        Column("compiled in"),
        words("threads"),
        words("compiler"),
    )
    native = found["target"] == "native"
    made_for = found["cpu"] if native else f"the target {found['target']}"
    title = f"CPU kernels for {made_for}, in {found['folder']}"
    return ReportDocument("CPU kernels", [DataTable(columns, rows, title=title)])
