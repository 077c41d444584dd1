"""The parts of the checker on their own: CEL, quantities, names, cron, YAML, schemas."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.check.manifests import shipped_kinds

from ridgeline.errors import InputError
from ridgeline.launch.check import cel, grammar, read_text
from ridgeline.launch.check.catalogue import find_kind
from ridgeline.launch.check.grammar import schedule_problem
from ridgeline.launch.check.structural import with_defaults
from ridgeline.records.kube_quantity import parse_quantity


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("self >= 1 && self < 4", 3, True),
        ("self * 2 + 1 == 7 || false", 3, True),
        ("-self == 0 - 3", 3, True),
        ("has(self.a) ? self.a.size() > 1 : true", {"a": [1]}, False),
        ("has(self.a) ? self.a.size() > 1 : true", {}, True),
        ("self.all(x, x in ['a', \"b\"])", ["a", "b"], True),
        ("self.exists(x, x.n == 2)", [{}, {"n": 2}], True),
        ("self.filter(i, i != 'a').size() == 1", ["a", "b"], True),
        ("self.map(i, i + 1) == [2, 3]", [1, 2], True),
        ("self.exists_one(i, i == 1)", [1, 1], False),
        ("self.matches('^[a-z]+$')", "ab1", False),
        ("self[size(self) - 1].k == 'z'", [{"k": "a"}, {"k": "z"}], True),
        ("[has(self.a), has(self.b)].filter(x, x).size() == 1", {"b": 0}, True),
        ("!(self == true) != true", True, True),
        ("self.a.startsWith('x') || has(self.b)", {"b": 1}, True),
        ("1 == true", None, False),
    ],
)
def test_cel_expressions_have_the_values_of_the_specification(rule, value, expected):
    assert cel.compiled(rule).evaluate({"self": value}) is expected


@pytest.mark.parametrize(
    "rule", ["self.a > 1", "self.a.b", "self.b && self.a", "self.c < 'x'", "unknown"]
)
def test_a_missing_field_or_wrong_type_has_no_value(rule):
    with pytest.raises(cel.EvaluationError):
        cel.compiled(rule).evaluate({"self": {"b": True, "c": 1}})


def test_an_unknown_function_is_not_passed_over():
    with pytest.raises(cel.UnsupportedExpression):
        cel.compiled("quantity(self) > 1")


def _schemas(value):
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _schemas(item)
    elif isinstance(value, list):
        for item in value:
            yield from _schemas(item)


def test_every_rule_and_pattern_of_the_shipped_schemas_can_be_read():
    rules = 0
    for kind in shipped_kinds():
        found = find_kind(*kind.rsplit("/", 1))
        for schema in _schemas(found.schema) if found.custom else ():
            for rule in schema.get("x-kubernetes-validations", ()):
                cel.compiled(rule["rule"])
                rules += 1
    assert rules == 116
    assert len(shipped_kinds()) == 58


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "Ki", "Mi", "k", "M", "m", "e3"]))
def test_quantities_are_exact(number, suffix):
    scale = {
        "": 1,
        "Ki": 2**10,
        "Mi": 2**20,
        "k": 1000,
        "M": 10**6,
        "m": Fraction(1, 1000),
        "e3": 1000,
    }
    assert parse_quantity(f"{number}{suffix}") == number * scale[suffix]


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1ki", "0x1", "1e", "--1", True, [], {}])
def test_what_is_no_quantity_is_refused(text):
    assert parse_quantity(text) is None


@given(st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z"))
def test_every_rfc_1123_label_is_a_name(text):
    assert grammar.dns_label(text) == ""
    assert grammar.dns_subdomain(text) == ""
    assert grammar.label_value(text) == ""


@given(st.text(min_size=1, max_size=70))
def test_labels_and_subdomains_are_what_their_patterns_say(text):
    label = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", text, re.ASCII) and len(text) <= 63
    assert (grammar.dns_label(text) == "") == bool(label)


@pytest.mark.parametrize(
    ("schedule", "sound"),
    [
        ("*/5 * * * *", True),
        ("0 2 1,15 jan-mar MON-FRI", True),
        ("@daily", True),
        ("@every 1h30m", True),
        ("@sometimes", False),
        ("* * * *", False),
        ("60 * * * *", False),
        ("5-2 * * * *", False),
        ("*/0 * * * *", False),
        ("a * * * *", False),
        ("* * 0 * *", False),
    ],
)
def test_cron_schedules(schedule, sound):
    assert (schedule_problem(schedule) == "") is sound


def test_documents_keep_the_line_where_they_start():
    first = "# first\nkind: Pod\napiVersion: v1\n---\n---\n"
    items = "- {apiVersion: v1, kind: Pod}\n- {apiVersion: batch/v1, kind: Job}\n"
    text = f"{first}kind: List\nitems:\n{items}"
    assert [d.source for d in read_text(text, "f.yaml")] == [
        "f.yaml:2",
        "f.yaml:6 items[0]",
        "f.yaml:6 items[1]",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "f.yaml:"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3"),
        ("- 1\n", "f.yaml:1"),
        ("kind: Pod\n---\napiVersion: v1\n", "f.yaml:1"),
        ("kind: List\nitems: [1]\n", "f.yaml:1 items[0]"),
    ],
)
def test_bad_yaml_is_one_line_with_file_and_line(text, line):
    with pytest.raises(InputError) as caught:
        read_text(text, "f.yaml")
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_json_is_read_too_and_dates_stay_text():
    pod = {"apiVersion": "v1", "kind": "Pod", "n": 1}
    assert read_text(json.dumps(pod), "f.json")[0].manifest == pod
    dated = read_text("{apiVersion: v1, kind: Pod, day: 2026-08-01}", "f")[0].manifest
    assert dated["day"] == "2026-08-01"


def test_defaults_are_filled_in_below_what_is_given():
    port = {
        "type": "object",
        "properties": {"protocol": {"type": "string", "default": "TCP"}, "n": {"type": "string"}},
    }
    schema = {"properties": {"ports": {"type": "array", "items": port}}}
    filled = with_defaults({"ports": [{"n": None}, {"protocol": "UDP"}]}, schema)
    assert filled == {"ports": [{"protocol": "TCP"}, {"protocol": "UDP"}]}
