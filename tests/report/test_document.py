"""One document, drawn in a terminal, on a page and as Markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.drawn import drawn

from ridgeline.report import document as doc
from ridgeline.report.markdown import draw_markdown
from ridgeline.report.page import draw_page
from ridgeline.report.plots import LOOKS

TABLE = doc.DataTable(
    (
        doc.words("kind"),
        doc.Column("step_seconds", "step"),
        doc.Column("peak_bytes"),
        doc.Column("shape", wide=True),
        doc.Column("page_bytes", only="page"),
        doc.Column("nowhere"),
        doc.Column("remark", "why", "remark"),
    ),
    [
        ("first", 0.99996, 2e9, "4 x 4", 1e6, None, "because it is first"),
        doc.TableRow(("second", None, 3e9, "8 x 8", 1e6, None, ""), "dim"),
    ],
)


def a_document(*blocks: doc.Block) -> doc.ReportDocument:
    return doc.ReportDocument("title", blocks)


def test_a_figure_reads_the_same_wherever_it_is_drawn() -> None:
    document = a_document(TABLE)
    for text in (drawn(document), draw_page(document), draw_markdown(document)):
        assert "1.00 s" in text
        assert "2.00 GB" in text
        assert "peak" in text


def test_columns_without_values_and_those_of_other_media_are_left_out() -> None:
    document = a_document(TABLE)
    terminal, page = drawn(document), draw_page(document)
    assert "nowhere" not in terminal + page
    assert "page" not in terminal
    assert "1.00 MB" in page
    assert "8 x 8" not in drawn(document, 80)
    assert "8 x 8" in drawn(document, 120)


def test_a_remark_stands_below_its_row_where_there_is_no_room_beside() -> None:
    narrow, wide = drawn(a_document(TABLE), 80), drawn(a_document(TABLE), 120)
    assert re.search(r"first .*\n because it is first", narrow)
    assert re.search(r"first .*because it is first", wide)


def test_names_keep_their_indentation() -> None:
    table = doc.DataTable((doc.name("where"), doc.Column("us")), [("outer", 1.0), ("  inner", 1.0)])
    assert "\n  inner" in drawn(a_document(table))


def test_bars_mark_what_they_should_not_pass() -> None:
    parts = [doc.BarPart("weights", 30.0, "30 B", LOOKS[0])]
    text = drawn(a_document(doc.Bars([doc.Bar("stage 0", "30 B", parts)], limit=20.0)))
    inside, mark, past = text.partition("|")
    assert mark
    assert inside.count(LOOKS[0].fill) > past.count(LOOKS[0].fill) > 0


def test_what_is_for_one_medium_stays_there() -> None:
    document = a_document(
        doc.Only("page", [doc.Paragraph("for readers")]),
        doc.Only("terminal", [doc.Paragraph("for typists")]),
    )
    assert "for readers" not in drawn(document)
    assert "for typists" not in draw_page(document)


words = st.lists(st.text("abc[]<>&`", min_size=1, max_size=30), min_size=1, max_size=30)


@given(words, st.integers(20, 60))
def test_a_paragraph_keeps_every_word_whole(texts: list[str], width: int) -> None:
    shown = drawn(a_document(doc.Paragraph(" ".join(texts))), width)
    assert shown.split() == texts
    long = max(map(len, texts))
    assert all(len(line) <= max(width, long) for line in shown.splitlines())


def test_a_row_of_the_wrong_length_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        doc.DataTable((doc.words("a"), doc.words("b")), [("only one",)])
