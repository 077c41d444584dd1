"""docs/reference/json.md lists every key of what is printed and kept as JSON."""

from __future__ import annotations

from tests.records.json_page import PAGE, page


def test_the_page_lists_every_key_of_every_record() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.records.json_page"
