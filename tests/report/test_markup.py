"""HTML that is safe by construction."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report.markup import data_script, element, table

texts = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]))


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(texts, texts)
def test_any_text_comes_out_as_the_text_it_was(text: str, title: str) -> None:
    reader = Reader()
    reader.feed(element("p", text, title=title))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.text == text
    assert reader.attributes == {"title": title}


@given(st.dictionaries(texts, st.lists(texts | st.floats(allow_nan=False, allow_infinity=False))))
def test_data_comes_back_and_cannot_end_its_script(value: dict[str, object]) -> None:
    script = str(data_script("d", value))
    inner = script.removeprefix('<script type="application/json" id="d">').removesuffix("</script>")
    assert "<" not in inner
    assert json.loads(inner) == value


def test_a_table_scrolls_in_its_own_container() -> None:
    text = str(table(["a", "b"], [["<x>", "1"]]))
    assert text.startswith('<div class="scroll"><table')
    assert '<td class="text">&lt;x&gt;</td><td class="number">1</td>' in text
