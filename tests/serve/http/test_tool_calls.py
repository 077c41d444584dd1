"""Tool calls in text: the common ways of writing them, whole and in pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serve.http.tool_calls import Call, NamedCallReader, ToolCallReader

NAMES = frozenset({"weather", "time"})
TAGGED = '<tool_call>\n{"name": "weather", "arguments": {"city": "A}\\""}}\n</tool_call>'


def read(text: str, cuts: list[int]) -> tuple[str, list[Call]]:
    """Content and calls of a text that comes in pieces."""
    reader, content, streamed = ToolCallReader(NAMES), "", {}
    places = [0, *sorted(cuts), len(text)]
    pieces = [piece for start, end in pairwise(places) for piece in reader.feed(text[start:end])]
    for piece in [*pieces, *reader.finish()]:
        content += piece.content
        if piece.index >= 0:
            name, arguments = streamed.get(piece.index, (None, ""))
            assert (piece.name is None) != (name is None), "each name comes once, and first"
            streamed[piece.index] = (piece.name or name, arguments + piece.arguments)
    assert [(call.name, call.arguments) for call in reader.calls] == list(streamed.values())
    return content, reader.calls


def call(name: str, arguments: str = "{}", *, done: bool = True) -> Call:
    return Call(name, arguments, done)


WAYS = [
    ("just <b>text</b> ", "just <b>text</b> ", []),
    (TAGGED, "", [call("weather", '{"city": "A}\\""}')]),
    ("I look.\n\n" + TAGGED + "\n", "I look.", [call("weather", '{"city": "A}\\""}')]),
    (
        TAGGED + "\n<tool_call>" + '{"arguments": {}, "name": "time"}</tool_call>',
        "",
        [call("weather", '{"city": "A}\\""}'), call("time")],
    ),
    ('{"name": "time", "parameters": {"zone": 1}}', "", [call("time", '{"zone": 1}')]),
    (
        '<|python_tag|>{"name": "time", "parameters": {}}; {"name": "weather", "parameters": {}}',
        "",
        [call("time"), call("weather")],
    ),
    (' [{"name": "time"}, {"name": "weather"}]\n', "", [call("time"), call("weather")]),
    ('{"name": "time", "arguments": "{\\"a\\": 1}"}', "", [call("time", '{"a": 1}')]),
    ('{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
    ('{"answer": 42}', '{"answer": 42}', []),
    ("[1, 2]", "[1, 2]", []),
    ("<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
    ('<tool_call>{"nme": 1}</tool_call>', '<tool_call>{"nme": 1}</tool_call>', []),
    (
        '<tool_call>{"name": "time", "arguments": {"zo',
        "",
        [call("time", '{"zo', done=False)],
    ),
    ('{"name": "ti', '{"name": "ti', []),
    ("a <tool_", "a <tool_", []),
]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(("text", "content", "calls"), WAYS)
@given(data=st.data())
def test_the_same_is_read_however_the_text_is_cut(
    text: str, content: str, calls: list[Call], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=len(text)))
    assert read(text, cuts) == (content, calls)


@given(st.text(alphabet='<tool_call>/{}[]",: name\\', max_size=60))
def test_no_text_is_lost_where_there_is_no_call(text: str) -> None:
    content, calls = read(text, [])
    assert calls or content == text


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.integers(1, 7))
def test_arguments_arrive_as_they_were_written(arguments: dict[str, object], size: int) -> None:
    written = json.dumps(arguments)
    text = f'<tool_call>{{"name": "time", "arguments": {written}}}</tool_call>'
    assert read(text, list(range(0, len(text), size))) == ("", [call("time", written)])


def test_a_named_call_is_all_arguments() -> None:
    reader = NamedCallReader("time")
    pieces = [*reader.feed('{"a"'), *reader.feed(""), *reader.feed(":1}"), *reader.finish()]
    assert [(piece.name, piece.arguments) for piece in pieces] == [("time", '{"a"'), (None, ":1}")]
    assert reader.calls == [call("time", '{"a":1}')]
