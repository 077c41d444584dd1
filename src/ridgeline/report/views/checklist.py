"""What `ridgeline checklist` shows: what is not done first, then what is not known."""

from __future__ import annotations

from ridgeline.records.checklist import Checklist, ChecklistBox, Standing
from ridgeline.report import document as doc

_ORDER: tuple[Standing, ...] = ("not done", "unknown", "done", "not applicable")


def checklist_document(found: Checklist) -> doc.ReportDocument:
    """A chapter per list, and in it a table per standing."""
    counts = ", ".join(f"{found.counts[standing]} {standing}" for standing in _ORDER)
    lead = doc.Lead(counts, ", ".join(found.sources) or "no record was given", "Checklist")
    chapters = [doc.Chapter(group.capitalize(), _tables(found, group)) for group in found.groups]
    return doc.ReportDocument("Checklist", [lead, *chapters])


def _tables(found: Checklist, group: str) -> list[doc.Block]:
    tables: list[doc.Block] = []
    for standing in _ORDER:
        boxes = [box for box in found.boxes if box.group == group and box.standing == standing]
        if boxes:
            tables.append(_table(standing, boxes))
    return tables


def _table(standing: Standing, boxes: list[ChecklistBox]) -> doc.DataTable:
    open_still = standing in ("not done", "unknown")
    columns = [
        doc.Column("priority", "first"),
        doc.words("box", "box"),
        doc.words("evidence", "evidence"),
        doc.words("source", "by", wide=True),
        doc.words("command", "finds out" if standing == "unknown" else "closes it"),
    ]
    rows = [
        (
            box.priority,
            box.box,
            box.evidence,
            box.source or None,
            box.command if open_still else None,
        )
        for box in boxes
    ]
    return doc.DataTable(columns, rows, title=standing)
