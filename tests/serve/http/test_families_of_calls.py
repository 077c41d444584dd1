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
from ridgeline.serve.http.tool_calls import ToolCallReader
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
FIRST_NAMED, SECOND_NAMED = (one.strip(" ") for one in LIST[1:-1].split(", {", 1))
SECOND_NAMED = "{" + SECOND_NAMED


def tagged(prefix: str, kind: str) -> str:
    """The two calls in tags with a name; `kind` has a place for whether the value is a text."""
    return "".join(
        f'<{prefix}invoke name="{name}">\n'
        + "".join(
            f'<{prefix}parameter name="{key}"{kind.format(str(isinstance(value, str)).lower())}>'
            f"{value}</{prefix}parameter>\n"
            for key, value in given.items()
        )
        + f"</{prefix}invoke>\n"
        for name, given in TWO
    )


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
    ("hunyuan_a13b", f"<tool_calls>\n{LIST}\n</tool_calls>"),
    ("minimax", f"<tool_calls>\n{FIRST_NAMED}\n{SECOND_NAMED}\n</tool_calls>"),
    (
        "internlm",
        (
            f"<|action_start|><|plugin|>\n{FIRST_NAMED}<|action_end|>\n<|action_start|>"
            f"<|plugin|>\n{SECOND_NAMED}<|action_end|>\n"
        ),
    ),
    ("nemotron_json", f"<TOOLCALL>{LIST}</TOOLCALL>"),
    (
        "longcat",
        (
            f"<longcat_tool_call>{FIRST_NAMED}</longcat_tool_call>\n<longcat_tool_call>"
            f"{SECOND_NAMED}</longcat_tool_call>"
        ),
    ),
    ("granite-20b-fc", f"<function_call> {FIRST_NAMED} <function_call> {SECOND_NAMED}"),
    (
        "gigachat3",
        (
            f"<|message_sep|>\n\nfunction call<|role_sep|>\n{FIRST_NAMED}\n"
            f"function call<|role_sep|>\n{SECOND_NAMED}"
        ),
    ),
    ("pangu", f"[unused11]{LIST}[unused12]"),
    (
        "cohere_command3",
        "<|START_ACTION|>[\n"
        + ",\n".join(
            f'    {{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {given}}}'
            for number, (name, given) in enumerate([("weather", FIRST), ("time", SECOND)])
        )
        + "\n]<|END_ACTION|>",
    ),
    ("apertus", f'<|tools_prefix|>[{{"weather": {FIRST}}}, {{"time": {SECOND}}}]<|tools_suffix|>'),
    (
        "openai",
        (
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            f"{FIRST}<|call|><|start|>assistant"
            " to=functions.time<|channel|>commentary json<|message|>"
            f"{SECOND}<|call|>"
        ),
    ),
    ("seed_oss", QWEN.replace("tool_call>", "seed:tool_call>")),
    ("qwen3_coder", QWEN.replace("<tool_call>\n", "")),
    (
        "hy_v3",
        f"<tool_calls>{GLM.replace('<arg_key>city', '<tool_sep><arg_key>city')}</tool_calls>",
    ),
    ("glm47", GLM.replace("\n", "")),
    ("minimax_m2", f"<minimax:tool_call>\n{tagged('', '')}</minimax:tool_call>"),
    (
        "deepseek_v32",
        "<｜DSML｜function_calls>\n"
        + tagged("｜DSML｜", ' string="{}"')
        + "</｜DSML｜function_calls>",
    ),
    (
        "step3",
        "<｜tool_calls_begin｜>"
        + "".join(
            f"<｜tool_call_begin｜>function<｜tool_sep｜>{one}</steptml:invoke><｜tool_call_end｜>"
            for one in tagged("steptml:", "").split("</steptml:invoke>\n")
            if one
        )
        + "<｜tool_calls_end｜>",
    ),
    ("minicpm5", tagged("", "").replace("invoke", "function").replace("parameter", "param")),
    (
        "kimi_k3",
        (
            "<|open|>tools<|sep|>"
            '<|open|>call tool="weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>'
            'Rome<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2'
            '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="time" index="2"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
    ),
    (
        "gemma4",
        (
            '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>'
            '<|tool_call>call:time{city:<|"|>Oslo<|"|>}<tool_call|>'
        ),
    ),
    (
        "functiongemma",
        (
            "<start_function_call>call:weather{city:<escape>Rome<escape>,days:2}"
            "<end_function_call><start_function_call>call:time{city:<escape>Oslo<escape>}"
            "<end_function_call>"
        ),
    ),
    (
        "lfm2",
        '<|tool_call_start|>[weather(city="Rome", days=2), time(city="Oslo")]<|tool_call_end|>',
    ),
    (
        "olmo3",
        '<function_calls>\nweather(city="Rome", days=2)\ntime(city="Oslo")\n</function_calls>',
    ),
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
    kept = text
    for mark in (*tool_families()[family].drop, tool_families()[family].close):
        kept = kept.replace(mark, "") if mark and mark in kept else kept
    kept = text if tool_families()[family].open in text else kept
    assert read(family, [text]) == (kept, [])
    assert read(family, list(text)) == (kept, [])


@pytest.mark.parametrize("family", ["lfm2", "olmo3", "pythonic"])
def test_python_calls_may_have_jsons_words_and_pythons_names(family: str) -> None:
    own = tool_families()[family]
    text = '[f(from="Rome", class=[true, null], a={"b": false})]'
    body = text if family == "pythonic" else own.open + text + own.close
    assert read(family, [body]) == (
        "",
        [("f", {"from": "Rome", "class": [True, None], "a": {"b": False}})],
    )


def test_objects_with_bare_keys_may_be_deep_and_have_marks_in_texts() -> None:
    body = 'call:f{a:{b:[<|"|>x{y:1}, "z"<|"|>,2.5],c:true},"d":null}'
    assert read("gemma4", [f"<|tool_call>{body}<tool_call|>"])[1] == [
        ("f", {"a": {"b": ['x{y:1}, "z"', 2.5], "c": True}, "d": None})
    ]
    assert read("gemma4", ["<|tool_call>call:f{a:}<tool_call|>"])[1] == []


def test_a_value_that_is_said_to_be_a_text_stays_one() -> None:
    name, value = ("f", {"a": "12", "b": [1]})
    given = '"a" string="true">12', '"b" string="false">[1]'
    inside = "".join(f"<｜DSML｜parameter name={one}</｜DSML｜parameter>" for one in given)
    body = f'<｜DSML｜invoke name="f">{inside}</｜DSML｜invoke>'
    assert read("deepseek_v32", [body]) == ("", [(name, value)])


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "mistral"])
def test_text_behind_a_call_keeps_its_signs_however_it_is_cut(family: str) -> None:
    call = {
        "hermes": f"<tool_call>{FIRST_NAMED}</tool_call>",
        "qwen3_coder": QWEN.partition("\n<tool_call>")[0],
        "mistral": f"[TOOL_CALLS]weather{FIRST}",
    }[family]
    text = f"{call}\nIn Rome, a [list]; so"
    reader: ToolCallReader | MarkedCallReader = (
        ToolCallReader(frozenset(TOOLS))
        if family == "hermes"
        else MarkedCallReader(tool_families()[family], TOOLS)
    )
    pieces = [piece for part in text for piece in reader.feed(part)] + reader.finish()
    assert "".join(piece.content for piece in pieces) == "\nIn Rome, a [list]; so"
    assert [call.name for call in reader.calls] == ["weather"]


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
