"""What a user sees: the documented rules, the report's words, its JSON and its exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.launch.check.manifests import JOB_SET_POD, changed, job, job_set, shipped_kinds
from tests.report.drawn import drawn

from ridgeline.cli.main import run
from ridgeline.launch.check import ManifestReport, check_files
from ridgeline.launch.check.stricter import stricter_rules
from ridgeline.report.views.launch import check_document

PAGE = Path(__file__).parents[3] / "docs/reference/launch-check.md"


def test_the_reference_page_has_every_rule_with_its_reason_and_cure():
    text = PAGE.read_text()
    for rule in stricter_rules().values():
        assert f"| `{rule.name}` | {rule.severity} | {rule.reason} | {rule.cure} |" in text
    assert text.count("\n| `") == len(stricter_rules())
    assert all(kind.rpartition("/")[2] in text for kind in shipped_kinds())


@pytest.fixture
def broken(tmp_path):
    """A sound Job, a JobSet that never starts, and one that is rejected."""
    path = tmp_path / "jobs.yaml"
    stuck = changed(job_set(), f"{JOB_SET_POD}.restartPolicy", "Sometimes")
    rejected = changed(job_set(), "spec.replicas", 2)
    path.write_text(
        yaml.safe_dump_all([job(), stuck, rejected, {"apiVersion": "a/v1", "kind": "B"}])
    )
    return path


def test_the_terminal_says_what_happens_where_and_what_to_do(broken):
    text = drawn(check_document(check_files([broken]).verdicts), 200)
    assert f"{broken}:1" in text.replace("\n", "")
    assert "accepted and never start" in text
    assert "would be rejected" in text
    assert "unknown kind" in text
    assert f"{JOB_SET_POD}.restartPolicy" in text
    assert "3 checked: 1 would be rejected, 1 would never start; 1 of unknown kinds" in text


def test_the_command_ends_with_3_when_something_would_not_run(broken, capsys):
    assert run(["launch", "--check", str(broken), "--json"]) == 3
    document = capsys.readouterr().out
    report = msgspec.json.decode(document, type=ManifestReport)
    assert [(v.accepted, v.runs, v.known) for v in report.verdicts] == [
        (True, True, True),
        (True, False, True),
        (False, False, True),
        (True, True, False),
    ]
    assert json.loads(document)["passed"] is False


def test_the_command_ends_with_0_when_all_is_well(tmp_path, capsys):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job()))
    assert run(["launch", "--check", str(path)]) == 0
    assert "1 checked: 0 would be rejected" in capsys.readouterr().out


def test_yaml_that_is_none_is_bad_input_in_one_line(tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text("a:\n  - b\n c: [")
    assert run(["launch", "--check", str(path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{path}:3" in line


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no object"),
        ("# only\n# comments\n", "holds no object"),
        ("---\n---\n", "holds no object"),
        ("kind: List\napiVersion: v1\nitems: []\n", "holds no object"),
        ("[]", "not an object"),
        ("- apiVersion: v1\n  kind: Pod\n", "not an object"),
        ("hello", "not an object"),
        ("{}", "not an object"),
        ("metadata: {name: a}\n", "not an object"),
        ("apiVersion: a/v1\nkind: B\n", "nothing was checked: no schema of a/v1/B"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_file_in_which_nothing_can_be_checked_is_one_line(
    tmp_path, capsys, monkeypatch, text, said, flags
):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for name in ("-", str(path)):
        assert run(["launch", "--check", name, *flags]) == 2
        seen = capsys.readouterr()
        assert seen.out == ""
        assert seen.err.startswith(f"ridgeline: {name}:")
        assert said in seen.err
        assert seen.err.count("\n") == 1


def test_one_empty_file_among_sound_ones_is_named(broken, tmp_path, capsys):
    (tmp_path / "empty.yaml").touch()
    assert run(["launch", "--check", str(broken), str(tmp_path / "empty.yaml")]) == 2
    assert "empty.yaml: holds no object" in capsys.readouterr().err


def test_manifests_are_read_from_standard_input(capsys, monkeypatch):
    text = yaml.safe_dump(job()).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["launch", "--check", "-"]) == 0
    assert "1 checked" in capsys.readouterr().out
