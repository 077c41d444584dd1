"""Tool calls in the way of each family, whole and however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serve.http.chat_template import ChatTemplate
from ridgeline.serve.http.marked_calls import MarkedCallReader
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.protocol.tools import Tool
from ridgeline.serve.http.tool_families import (
    check_tool_parser,
    choose_tool_family,
    tool_families,
)
from ridgeline.serve.http.tool_request import check_tools, strict_calls

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = {
    name: Tool.model_validate(
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    )
    for name in ("weather", "time")
}
TWO = [("weather", {"city": "Rome", "days": 2}), ("time", {"city": "Oslo"})]
QWEN = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=time>\n<parameter=city>\nOslo\n"
    "</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days"
    "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n<arg_key>city</arg_key>"
    "\n<arg_value>Oslo</arg_value>\n</tool_call>"
)
LIST = (
    '[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, {"name": "time",'
    ' "arguments": {"city": "Oslo"}}]'
)
FIRST, SECOND = '{"city": "Rome", "days": 2}', '{"city": "Oslo"}'
WRITTEN = [
    ("qwen3_coder", QWEN),
    ("glm45", GLM),
    ("mistral", "[TOOL_CALLS]" + LIST),
    ("mistral", "[TOOL_CALLS] " + LIST + "</s>"),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{FIRST}[TOOL_CALLS]time[ARGS]{SECOND}"),
    ("mistral", f"[TOOL_CALLS]weather{FIRST}[TOOL_CALLS]time{SECOND}"),
    (
        "deepseek_v31",
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{FIRST}<｜tool▁call▁end｜>"
            f"<｜tool▁call▁begin｜>time<｜tool▁sep｜>{SECOND}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    (
        "deepseek_v3",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            f"{FIRST}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n"
            f"{SECOND}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    (
        "kimi_k2",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
            f"<|tool_call_argument_begin|>{FIRST}<|tool_call_end|><|tool_call_begin|>functions.time:1"
            f"<|tool_call_argument_begin|>{SECOND}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    ("granite", "<|tool_call|>" + LIST),
    ("phi4_mini_json", "functools" + LIST),
    ("jamba", f"<tool_calls>{LIST}</tool_calls>"),
    ("pythonic", "[weather(city=\"Rome\", days=2), time(city='Oslo')]"),
    ("llama4_pythonic", '<|python_start|>[weather(city="Rome", days=2), time(city="Oslo")]'),
]


def read(family: str, parts: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls, as a client puts a stream's pieces together."""
    own = tool_families()[check_tool_parser(family)]
    reader = MarkedCallReader(own, TOOLS, frozenset({"</s>"}))
    pieces = [piece for part in parts for piece in reader.feed(part)] + reader.finish()
    names = [piece.name for piece in pieces if piece.name is not None]
    arguments = [""] * len(names)
    for piece in pieces:
        if piece.index >= 0:
            arguments[piece.index] += piece.arguments
    text = "".join(piece.content for piece in pieces)
    assert [call.arguments for call in reader.calls] == arguments
    assert all(call.done for call in reader.calls)
    return text, [(name, json.loads(one)) for name, one in zip(names, arguments, strict=True)]


@pytest.mark.parametrize(("family", "text"), WRITTEN)
def test_calls_are_found_whole_and_cut_anywhere(family: str, text: str) -> None:
    spoken = "" if "pythonic" in family else "I look. "
    whole = read(family, [spoken + text])
    assert whole == (spoken.strip(), TWO)
    assert read(family, list(spoken + text)) == whole
    for size in (2, 3, 7):
        cuts = range(0, len(spoken + text), size)
        assert read(family, [(spoken + text)[at : at + size] for at in cuts]) == whole


@pytest.mark.parametrize("family", [one for one in tool_families() if one != "hermes"])
@pytest.mark.parametrize(
    "text",
    ["plain", "a [list] {of: things} <b>", "[TOOL_CALLS] no call", "<tool_call>nothing</tool_call>",
     "[1, 2] are numbers", "functools.partial(f)", '[open("x")]', "<|tool_call|>", "<tool_c"],
)  # fmt: skip
def test_what_is_no_call_stays_text(family: str, text: str) -> None:
    assert read(family, [text]) == (text, [])
    assert read(family, list(text)) == (text, [])


def test_values_between_tags_have_their_schemas_types() -> None:
    text = QWEN.replace("Rome", "12").replace("\n2\n", "\nmany\n")
    assert read("qwen3_coder", [text])[1][0] == ("weather", {"city": "12", "days": "many"})


@pytest.mark.parametrize("name", sorted(tool_families()))
def test_a_template_with_a_familys_sign_chooses_it(name: str) -> None:
    family = tool_families()[name]
    template = ChatTemplate(text=f"… {family.sign or family.open} …", origin="tokenizer")
    assert choose_tool_family("auto", template)[0] == name


def test_a_familys_other_names_are_known_and_others_refused() -> None:
    assert check_tool_parser("llama3_json") == "hermes"
    with pytest.raises(InputError, match="--tool-call-parser nobody: unknown; known are auto"):
        check_tool_parser("nobody")


def test_strict_calls_are_refused_where_no_grammar_can_hold_them() -> None:
    function = {"name": "f", "strict": True}
    request = ChatRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": function}],
        }
    )
    with pytest.raises(ApiError, match="strict is enforced with tool_choice required"):
        check_tools(request, tool_families()["glm45"])


@pytest.mark.parametrize("family", [n for n, f in tool_families().items() if f.strict_open])
def test_strict_calls_may_be_written_and_no_others(family: str) -> None:
    import xgrammar

    tools = [one.model_dump(exclude_none=True) for one in TOOLS.values()]
    for tool in tools:
        tool["function"]["strict"] = True
    request = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    )
    own = tool_families()[family]
    grammar = strict_calls(request, own)
    assert grammar is not None
    vocabulary = xgrammar.TokenizerInfo([*map(chr, range(128)), "<end>"], stop_token_ids=[128])
    compiled = xgrammar.GrammarCompiler(vocabulary).compile_structural_tag(grammar.text)

    def follows(arguments: str) -> bool:
        call = own.strict_open.replace("NAME", "time") + arguments + own.strict_close
        return bool(xgrammar.GrammarMatcher(compiled).accept_string("Let me see. " + call))

    assert follows('{"city": "Oslo"}')
    assert not follows('{"town": "Oslo"}')
