"""What `ridgeline calc` shows: a formula's result, or the list of all formulas."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.report import document as doc


def calc_document(title: str, values: Mapping[str, object]) -> doc.ReportDocument:
    """Names with what stands for them: the result's parts, or what each formula is about."""
    pairs: list[tuple[str, doc.Words]] = [(name, str(value)) for name, value in values.items()]
    return doc.ReportDocument(title, [doc.Paragraph(title), doc.Values(pairs, listed=True)])
