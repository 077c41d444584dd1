"""Where an object's values lie, however its text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serve.http.json_object import ObjectScanner

leaves = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(), values), st.booleans(), st.sampled_from([None, 2]), st.text())
def test_every_member_is_found_and_what_follows_is_left_alone(
    document: dict[str, object], ascii_only: bool, indent: int | None, behind: str
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    scanner = ObjectScanner()
    for sign in text + behind:
        scanner.feed(sign)
    assert scanner.end == len(text)
    assert not scanner.broken
    found = {key: json.loads(scanner.value(key) or "") for key in scanner.members}
    assert found == document


@pytest.mark.parametrize("text", ["{a", "[", "{1:2}", '{"a" 1}', '{"a":,}', '{"\\x":'])
def test_what_is_no_object_is_noticed(text: str) -> None:
    scanner = ObjectScanner()
    scanner.feed(text + '"')
    assert scanner.broken or scanner.end is None
