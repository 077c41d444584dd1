"""What `ridgeline explain` shows: sentences, the knobs that differ, every term side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.report.document import Block, Column, DataTable, Lines, ReportDocument, words

if TYPE_CHECKING:
    from ridgeline.plan.explain import Explanation


def explanation_document(found: Explanation) -> ReportDocument:
    """Why one estimate beats another."""
    names = (found.first, found.second)
    shown: list[Block] = [Lines([f"{sentence}." for sentence in found.sentences])]
    if found.knobs:
        columns = (words("knob"), *(words("value", name) for name in names))
        shown.append(DataTable(columns, [(knob, *values) for knob, values in found.knobs.items()]))
    terms = [
        (one.term, one.first_seconds, one.second_seconds, one.second_seconds - one.first_seconds)
        for one in found.terms
        if max(one.first_seconds, one.second_seconds) > 0
    ]
    seconds = (*(Column("seconds", name) for name in names), Column("seconds", "difference"))
    return ReportDocument("explanation", [*shown, DataTable((words("term"), *seconds), terms)])
