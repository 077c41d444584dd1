"""Files in the studio: whatever a command prints with --json has its page."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cli.whole_files import write_whole_files
from tests.report.records import a_ledger, a_profile, operators

import ridgeline.records
from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS
from ridgeline.records.store import write_record
from ridgeline.records.tagged import TaggedRecord
from ridgeline.report.page import draw_page
from ridgeline.studio.opened import kind_of, opened_document, openers
from ridgeline.studio.opened_traces import trace_questions

QUICK = [
    "trace summary whole.json",
    "trace idle whole.json",
    "predict inference --model resnet18 --device a100 --batches 1,8",
    "calc",
    "checklist --ledger ledger.json",
    "drill --seed 1 --count 2",
]
REST = [
    *(f"trace {name} whole.json" for name, one in QUESTIONS.items()
      if one.analysis and name != "idle"),
    "trace tree whole.json",
    "trace stack whole.json",
    "trace memory whole.json",
    "trace critical-path whole.json",
    "trace compare whole.json whole.json",
    "doctor --trace whole.json",
    "drill --list",
    "hardware",
    "hardware --device h100",
    "lesson",
    "predict stack ledger.json",
    "calc ridge peak_flops_per_second=1e15 bandwidth_bytes_per_second=3e12",
    "simulate batching --model Llama-3-8B --gpu H100 --rate 2 --requests 8",
    "predict scaling --model Llama-3-8B --device H100 --seq 4096",
    "predict memory --model Llama-3-8B --cluster 8xH100 --seq 4096 --global-batch 64",
    "predict training --model Llama-3-8B --cluster 8xH100 --seq 4096 --global-batch 64",
    "predict system --model resnet50 --cluster 8xA100 --vehicle orin",
    "predict compression --scheme w5a16-channel",
    "roofline gpt2 --device h100 --measured profile.json",
    "techniques",
]  # fmt: skip

ELSEWHERE = ("ridgeline.plan.explain", "ridgeline.diagnose.doctor", "ridgeline.cli.compare")
"""Modules beside the records that state kinds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a whole file of each kind, as the current one."""
    made = tmp_path_factory.mktemp("opened")
    write_whole_files(made)
    timed = [msgspec.structs.replace(one, shapes="[3072,256],[256,256]") for one in operators()]
    write_record(made / "profile.json", a_profile(operators=timed))
    ledger = a_ledger(baseline=a_profile(operators=timed), tuned=None)
    write_record(made / "ledger.json", ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("RIDGELINE_STATE", str(made / "state"))
        yield made


@pytest.mark.parametrize(
    "words", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in REST)]
)
def test_what_a_command_prints_has_a_page(words: str, folder: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run([*words.split(), "--json"]) in (0, 3)
    file = folder / "answer.json"
    file.write_text(said.getvalue())
    document = opened_document(file)
    assert document.blocks, kind_of(file)
    main = draw_page(document).partition("<main>")[2].partition("</main>")[0]
    assert len(re.sub("<[^>]*>", "", main).strip()) > 20


def stated_kinds() -> Iterator[tuple[str, type]]:
    """Every kind of record that a class of ours writes as its `record`."""
    records = [one.name for one in pkgutil.iter_modules(ridgeline.records.__path__)]
    names = [*(f"ridgeline.records.{name}" for name in records), *ELSEWHERE]
    for name in names:
        for kind in vars(importlib.import_module(name)).values():
            config = getattr(kind, "__struct_config__", None)
            stated = config is not None and config.tag_field == "record"
            if isinstance(kind, type) and stated and kind is not TaggedRecord:
                yield config.tag, kind


def test_every_kind_of_record_has_an_opener() -> None:
    missing = {tag for tag, _ in stated_kinds()} - set(openers())
    assert missing == set()


def test_answers_to_traces_are_opened_by_the_table_of_the_questions() -> None:
    for name, question in QUESTIONS.items():
        if not question.analysis:
            continue
        opener = trace_questions()[name]
        assert opener.view == question.view
        module, _, function = question.analysis.partition(":")
        hints = typing.get_type_hints(getattr(importlib.import_module(module), function))
        for record in opener.records:
            assert record.partition(":")[2] in str(hints["return"]), name


@pytest.mark.parametrize(
    "content",
    ["[]", "[1]", "[[]]", '{"ranks": []}', '{"ranks": [{"file": 1}]}', '{"ranks": 3}',
     '{"snapshots": []}', '[{"formula": {}, "about": [], "usage": 1}, 3]',
     '{"files": 1, "windows": 2, "verdict": 3}', '{"job": 1, "ranks": [1]}'],
)  # fmt: skip
def test_a_file_that_only_looks_like_an_answer_gets_one_line(content: str, tmp_path: Path) -> None:
    from ridgeline.errors import InputError

    file = tmp_path / "odd.json"
    file.write_text(content)
    with pytest.raises(InputError) as told:
        opened_document(file)
    assert "\n" not in str(told.value)
    assert "odd.json" in str(told.value)


def test_hostile_text_in_a_plain_document_stays_text(tmp_path: Path) -> None:
    file = tmp_path / "hardware.json"
    bad = "<script>window.broken = 1</script>"
    deep: dict[str, object] = {"end": bad}
    for _ in range(40):
        deep = {bad: deep, "list": [deep.get("end")]}
    whole = {"machine": {"cpu": bad}, "gpus": [{bad: bad}], "ceilings": deep}
    file.write_bytes(msgspec.json.encode(whole))
    assert bad not in draw_page(opened_document(file))
    json.loads(file.read_text())
