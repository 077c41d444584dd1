"""Calls that a model has written badly: the same is read of them however the text is cut.

Each family's way of writing two calls is spoilt by a seeded hand: characters go, signs, escapes and
marks come in. Nothing may be raised, and nothing come out that UTF-8 cannot write.
"""

from __future__ import annotations

import random

import pytest
from tests.serve.http.test_families_of_calls import TOOLS, WRITTEN

from ridgeline.serve.http.marked_calls import MarkedCallReader
from ridgeline.serve.http.tool_calls import ToolCallReader
from ridgeline.serve.http.tool_families import check_tool_parser, tool_families
from ridgeline.serve.http.tool_request import AskedCalls, FreeInput

NUM_MUTANTS = 12
ESCAPES = ("\\ud800", "\\udc00", "\\ud83d\\ude00", "\\q", "\\u12", "\\", '\\"', '{"input": "')
SIGNS = (*'{}[]":,;\\ \n<>/|=()a1', *ESCAPES)
HERMES = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    'So. <tool_call>{"name": "time", "arguments": {"input": "a\\nb"}}</tool_call> Then',
    '[{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "time"}]',
]
WAYS = [*((way[0], way[1]) for way in WRITTEN), *(("hermes", text) for text in HERMES)]
INPUT = '"city": "Rome", "days": 2'

Read = tuple[list[tuple[int, str | None, str]], list[tuple[str, str, bool]]]


def spoilt(hand: random.Random, text: str, marks: tuple[str, ...]) -> str:
    signs = list(text)
    for _ in range(hand.choice((1, 1, 2, 4))):
        at = hand.randrange(len(signs) + 1)
        if hand.random() < 0.4:
            del signs[at : at + hand.choice((1, 1, 6))]
        else:
            signs.insert(at, hand.choice((*SIGNS, *marks)))
    return "".join(signs)


def read(family: str, parts: list[str], custom: frozenset[str]) -> Read:
    """Pieces as a client puts them together, and the calls."""
    own = tool_families()[check_tool_parser(family)]
    reader: ToolCallReader | MarkedCallReader = (
        ToolCallReader(frozenset(TOOLS))
        if own.shape == "json"
        else MarkedCallReader(own, TOOLS, frozenset({"</s>"}))
    )
    asked = AskedCalls(reader, None, custom)
    pieces = [piece for part in parts for piece in asked.feed(part)] + asked.finish()
    joined: list[tuple[int, str | None, str]] = []
    for piece in pieces:
        text = piece.content + piece.arguments
        text.encode()
        if joined and piece.name is None and joined[-1][0] == piece.index:
            index, name, before = joined.pop()
            joined.append((index, name, before + text))
        else:
            joined.append((piece.index, piece.name, text))
    return joined, [(call.name, call.arguments, call.done) for call in asked.calls]


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_spoilt_calls_are_read_alike_however_they_are_cut(number: int) -> None:
    family, text = WAYS[number]
    own = tool_families()[check_tool_parser(family)]
    hand = random.Random(number)
    if hand.random() < 0.5:
        text = text.replace(INPUT, '"input": "a\\nb \\u00e9"')
    for _ in range(NUM_MUTANTS):
        mutant = spoilt(hand, text, (*own.marks, "</s>"))
        for custom in (frozenset[str](), frozenset({"weather"})):
            whole = read(family, [mutant], custom)
            assert all(name for name, _, _ in whole[1])
            cuts = sorted(hand.randrange(len(mutant) + 1) for _ in range(3))
            ends = zip([0, *cuts], [*cuts, len(mutant)], strict=True)
            assert read(family, [mutant[start:end] for start, end in ends], custom) == whole
            assert read(family, list(mutant), custom) == whole


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (r'{"input": "a\qb"}', r"a\qb"),
        (r'{"input": "a\ud83d\ude00b"}', "a😀b"),
        (r'{"input": "a\ud800b\udc00c"}', "a\ufffdb\ufffdc"),
        (r'{"input": "a\ud83d\t"}', "a\ufffd\t"),
        (r'{"input": "a\u12"}', r"a\u12"),
        (r'{"input": "a\ud83d\ude', "a"),
        (r'{"input": "a' + "\\", "a"),
        (r'{"text": "a\ud800"}', "a\ufffd"),
    ],
)
def test_escapes_that_json_has_not_stay_in_an_input(written: str, said: str) -> None:
    for size in range(1, len(written) + 1):
        one = FreeInput()
        parts = [one.feed(written[at : at + size]) for at in range(0, len(written), size)]
        assert "".join(parts) + one.finish() == said
