"""`ridgeline checklist`: boxes answered by planted profiles, traces, recipes and ledgers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.labelled_traces import SHARED
from tests.diagnose.profiles import gpu, limits, op, profile, spread
from tests.report.records import a_ledger

import ridgeline
from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.main import run
from ridgeline.cli.program import load_command
from ridgeline.diagnose import diagnose
from ridgeline.diagnose.checklist.answered import (
    PROFILE_QUESTIONS,
    RECIPE_QUESTIONS,
    TRACE_QUESTIONS,
)
from ridgeline.diagnose.checklist.boxes import GROUPS, boxes
from ridgeline.diagnose.doctor import Examination
from ridgeline.diagnose.rules import all_rules
from ridgeline.diagnose.trace_rules import all_trace_rules
from ridgeline.records import StepProfile
from ridgeline.records.script_facts import Habit
from ridgeline.records.store import write_record
from ridgeline.techniques import all_techniques

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
BOXES = {box.name: box for group in GROUPS for box in boxes(group)}
BY_HAND = {
    "kv-cache", "load-tested", "regression-gate", "links-measured", "resume-tried",
    "manifests-checked", "cost-known",
}  # fmt: skip
"""Boxes that no record of ours shows; each says how to find out."""


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Name → box, as the command prints it."""
    run(["checklist", *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert sum(document["counts"].values()) == len(document["boxes"])
    return {box["name"]: box for box in document["boxes"]}


def written(folder: Path, *profiles: StepProfile) -> str:
    """The file that `doctor --out` would write of these ranks."""
    device = profiles[0].models[0].device.split(":")[0]
    found = diagnose(profiles, limits(device))
    examination = Examination(
        profile=profiles[0],
        profiles=list(profiles) if len(profiles) > 1 else [],
        findings=list(found.findings),
        verdict=found.verdict,
        limit_fraction=found.limit_fraction,
    )
    path = folder / "run.json"
    write_record(path, examination)
    return str(path)


def test_without_a_record_every_box_is_unknown_and_says_how_to_find_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = asked(capsys)
    assert set(found) == set(BOXES)
    for box in found.values():
        assert (box["standing"], box["source"]) == ("unknown", "")
        assert box["command"]
        assert box["evidence"].startswith("would be seen in: ")


PLANTS: list[tuple[str, dict[str, Any], str]] = [
    ("mixed-precision", {"settings": {"autocast_dtype": None}}, "not done"),
    ("mixed-precision", {}, "done"),
    ("loss-scaling", {"settings": {"autocast_dtype": "float16"}}, "not done"),
    (
        "loss-scaling",
        {"settings": {"autocast_dtype": "float16", "gradient_scaler": True}},
        "done",
    ),
    ("loss-scaling", {}, "not applicable"),
    ("tf32", {"settings": {"matmul_precision": "highest"}}, "not done"),
    ("tf32", {}, "done"),
    ("compile", {"model": {"compiled": True}}, "done"),
    ("compile", {}, "not done"),
    ("whole-graphs", {"model": {"compiled": True}, "settings": {"recompiles": 3}}, "not done"),
    ("whole-graphs", {"model": {"compiled": True}}, "done"),
    ("whole-graphs", {}, "not applicable"),
    ("fused-optimizer", {"optimizer": {"fused": False, "supports_fused": True}}, "not done"),
    ("fused-optimizer", {"optimizer": {"fused": True, "supports_fused": True}}, "done"),
    ("fused-attention", {"habits": {"math_attention": Habit(calls=4.0)}}, "not done"),
    (
        "fused-attention",
        {"more": [op("_scaled_dot_product_flash_attention", 0.1)]},
        "done",
    ),
    ("fused-attention", {"model": {"has_attention": True}}, "unknown"),
    ("fused-attention", {}, "not applicable"),
    ("cudnn-benchmark", {"model": {"has_convolutions": True}}, "done"),
    (
        "cudnn-benchmark",
        {"model": {"has_convolutions": True}, "settings": {"cudnn_benchmark": False}},
        "not done",
    ),
    ("channels-last", {"model": {"has_convolutions": True, "channels_last": False}}, "not done"),
    ("channels-last", {"model": {"has_convolutions": True, "channels_last": True}}, "done"),
    ("tensor-core-shapes", {"model": {"odd_dimensions": {"head.weight": 50257}}}, "not done"),
    ("debug-switches", {"settings": {"anomaly_detection": True}}, "not done"),
    ("debug-switches", {}, "done"),
    ("loader-workers", {"loader": {"num_workers": 4}}, "done"),
    (
        "loader-workers",
        {"loader": {"num_workers": 0, "wait_seconds": 0.05}, "shares": {"data": 0.5}},
        "not done",
    ),
    ("loader-workers", {"loaders": []}, "not applicable"),
    ("pinned-memory", {"habits": {"pageable_copy": Habit(calls=2.0)}}, "not done"),
    ("pinned-memory", {"loader": {"pin_memory": True}}, "done"),
    ("pinned-memory", {"loader": {"pin_memory": False}}, "unknown"),
    ("non-blocking-copies", {"habits": {"pageable_copy": Habit(calls=2.0)}}, "not done"),
    ("non-blocking-copies", {}, "unknown"),
    ("persistent-workers", {"loader": {"num_workers": 2, "persistent_workers": True}}, "done"),
    ("prefetch", {"loader": {"num_workers": 2, "prefetch_factor": 2}}, "done"),
    ("prefetch", {"loader": {"num_workers": 0, "wait_seconds": 0.05}}, "not done"),
    ("set-to-none", {"optimizer": {"zeroes_in_place": True}}, "not done"),
    ("set-to-none", {"optimizer": {"zeroes_in_place": False}}, "done"),
    ("set-to-none", {"optimizers": []}, "unknown"),
    ("checkpointing", {}, "not applicable"),
    ("checkpointing", {"peak_memory_bytes": 15_500_000_000}, "not done"),
    ("checkpointing", {"device_memory_bytes": 0}, "unknown"),
    ("accumulation", {"settings": {"backwards_per_step": 4.0}}, "done"),
    ("finite-loss", {"non_finite": 2}, "not done"),
    ("finite-loss", {}, "done"),
    ("warmed-up", {"warmup_steps": 5}, "done"),
    ("warmed-up", {"warmup_steps": 5, "steady": False}, "not done"),
    ("evaluation-without-gradients", {"habits": {"evaluation": Habit(calls=0.1)}}, "done"),
    ("evaluation-without-gradients", {}, "unknown"),
    ("clipped-gradients", {}, "unknown"),
    ("no-sync", {}, "not applicable"),
    ("one-process-a-device", {"model": {"wrapper": "DataParallel"}}, "not done"),
    ("evaluation-mode", {}, "unknown"),
    ("tail-measured", {}, "unknown"),
    ("proved-by-measurement", {}, "unknown"),
]
"""Box, what is planted into a clean training script on a GPU, and how the box has to stand."""


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(("name", "planted", "standing"), PLANTS)
def test_a_planted_profile_answers_as_it_was_planted(
    name: str,
    planted: dict[str, Any],
    standing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    box = asked(capsys, "--profile", written(tmp_path, gpu(**planted)))[name]
    assert box["standing"] == standing, box["evidence"]
    assert box["source"] == ("" if standing == "unknown" else "profile")
    assert bool(box["command"]) == (standing in ("unknown", "not done"))


@pytest.mark.parametrize(
    ("name", "planted", "standing"),
    [
        ("inference-mode", {"settings": {"records_gradients": True}}, "not done"),
        ("inference-mode", {}, "done"),
        ("evaluation-mode", {"model": {"training": True}}, "not done"),
        ("evaluation-mode", {"model": {"training": False}}, "done"),
        ("tail-measured", {"steps": 20}, "not done"),
        ("tail-measured", {"steps": 200}, "done"),
        ("quantisation", {}, "not done"),
        ("quantisation", {"more": [op("_int_mm", 0.1, dtype="int8")]}, "done"),
        ("mixed-precision", {}, "unknown"),
        ("kv-cache", {}, "unknown"),
    ],
)
def test_a_profile_of_inference_answers_what_is_about_inference(
    name: str,
    planted: dict[str, Any],
    standing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = gpu(kind="inference", **planted)
    box = asked(capsys, "--profile", written(tmp_path, made))[name]
    assert box["standing"] == standing, box["evidence"]


def test_a_clean_profile_claims_no_more_than_the_doctor_looks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "training", "--profile", written(tmp_path, gpu()))
    said = found["no-sync-points"]["evidence"]
    assert said == "doctor looked for sync points, and found nothing worth doing"


def test_on_a_cpu_nothing_is_asked_of_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "training", "--profile", written(tmp_path, profile()))
    for name in ("tf32", "pinned-memory", "non-blocking-copies"):
        assert found[name]["standing"] == "not applicable"


def test_ranks_answer_what_one_process_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp = {"wrapper": "DistributedDataParallel", "ddp_find_unused": True, "ddp_bucket_view": True}
    one = gpu(model=ddp, world_size=2)
    environment = replace(one.environment, variables={"NCCL_P2P_DISABLE": "1"})
    ranks = [replace(one, rank=rank, environment=environment) for rank in range(2)]
    found = asked(capsys, "distributed", "--profile", written(tmp_path, *ranks))
    assert found["one-process-a-device"]["standing"] == "done"
    assert found["no-search-for-unused"]["standing"] == "not done"
    assert found["bucket-views"]["standing"] == "done"
    assert found["balanced-ranks"]["standing"] == "done"
    assert found["gradient-compression"]["standing"] == "not applicable"
    assert found["nccl-without-leftovers"]["evidence"] == "NCCL_P2P_DISABLE=1"
    alone = asked(capsys, "distributed", "--profile", written(tmp_path, ranks[0]))
    assert alone["balanced-ranks"]["standing"] == "unknown", "the other rank was not measured"


def test_exposed_communication_is_not_overlapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = gpu(
        model={"wrapper": "DistributedDataParallel"},
        world_size=2,
        shares={"communication": 0.6},
        habits={"collective": Habit(calls=4.0, seconds=0.06, bytes=4e8)},
    )
    waits = replace(waits, phases={**waits.phases, "communication": spread(0.06)})
    found = asked(
        capsys, "distributed", "--profile", written(tmp_path, waits, replace(waits, rank=1))
    )
    assert found["overlap"]["standing"] == "not done"
    assert found["gradient-compression"]["standing"] == "unknown"


LANGUAGE = """
[model]
config = "gpt2"
[data]
path = "text"
seq = 128
packing = "padded"
[layout]
dp = 4
pp = 2
global_batch = 8
precision = "fp32"
compiled = false
[optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-4
clip_norm = 0.0
[checkpoint]
keep = 0
[run]
steps = 50
[cluster]
devices = "16xH100"
domain_size = 8
domain_bytes_per_second = 450e9
network_bytes_per_second = 50e9
"""


def test_a_recipe_answers_what_it_declares_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(LANGUAGE)
    found = asked(capsys, "--recipe", str(path))
    wanted = {
        "mixed-precision": "not done", "compile": "not done", "fused-attention": "done",
        "no-padding": "not done", "clipped-gradients": "not done", "small-bubble": "not done",
        "checkpoints": "not done", "restarts": "not done", "held-out-data": "not done",
        "known-length": "done", "fills-the-cluster": "not done", "foretold": "not done",
        "tensor-parallel-in-a-node": "not applicable", "accumulation": "done",
        "own-data-for-each-rank": "done", "fused-optimizer": "unknown", "sharded-states": "unknown",
        "checkpointing": "unknown", "inference-mode": "unknown",
    }  # fmt: skip
    assert {name: found[name]["standing"] for name in wanted} == wanted
    assert {box["source"] for box in found.values()} == {"recipe", ""}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_we_ship_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "launch", "--recipe", str(path))
    assert found["one-file"]["standing"] == "done"


def test_what_ran_is_believed_before_what_was_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(LANGUAGE)
    made = written(tmp_path, gpu())
    box = asked(capsys, "training", "--profile", made, "--recipe", str(recipe))["mixed-precision"]
    assert (box["standing"], box["source"]) == ("done", "profile")


def test_a_ledger_says_what_is_in_the_stack_and_what_gave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = a_ledger(baseline=gpu(), tuned=gpu())
    path = tmp_path / "ledger.json"
    write_record(path, ledger)
    found = asked(capsys, "training", "--ledger", str(path))
    assert found["proved-by-measurement"]["standing"] == "done"
    stacked = {name for row in ledger.final_rows for name in row.members}
    for box in boxes("training"):
        if stacked & set(box.techniques):
            assert (found[box.name]["standing"], found[box.name]["source"]) == ("done", "ledger")
    assert any(box["source"] == "ledger" for box in found.values())
    left_out = {
        row.technique for row in ledger.rows if row.stage == "add" and not row.kept
    } - stacked
    refused = [
        found[box.name] for box in boxes("training")
        if left_out & set(box.techniques) and not stacked & set(box.techniques)
    ]  # fmt: skip
    assert all(box["standing"] == "not applicable" for box in refused)


TRACE = SHARED / "a100_critical_path/alexnet_cuda_sync.json.gz"


def test_a_trace_of_the_host_alone_is_a_look_at_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 900.0}
    events = [event | {"name": "aten::mm", "ts": 1000.0 * step} for step in range(5)]
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = asked(capsys, "--trace", str(path))["profiled"]
    assert found["source"] == "trace"
    assert found["evidence"] == "a trace of 4.90 ms of the host, without GPU work"


@pytest.mark.skipif(not TRACE.exists(), reason="the shared traces are not beside the checkout")
def test_a_trace_answers_what_was_seen_on_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--trace", str(TRACE))
    assert found["profiled"]["source"] == "trace"
    assert found["limit-known"]["standing"] == "done"
    assert found["clipped-gradients"]["standing"] == "unknown"


def test_the_command_and_the_api_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(written(tmp_path, gpu()))
    found = asked(capsys, "training", "--profile", str(path))
    made = ridgeline.checklist(["training"], ridgeline.read_evidence(profile=path))
    assert {box.name: box.standing for box in made.boxes} == {
        name: box["standing"] for name, box in found.items()
    }
    assert run(["checklist", "training", "--profile", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "autocast to bfloat16" in " ".join(shown.split())


def test_a_list_that_is_not_there_names_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checklist", "trainig"]) == 2
    said = capsys.readouterr().err
    assert "training, inference, distributed, launch" in said
    assert "Traceback" not in said


def test_a_record_of_another_kind_is_told_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"record": "training-run"}')
    assert run(["checklist", "training", "--ledger", str(path)]) == 2
    assert "its record is 'training-run', and 'tuning' is asked for" in capsys.readouterr().err


def test_every_box_is_asked_of_some_record_or_is_found_out_by_hand() -> None:
    assert len(BOXES) == sum(len(boxes(group)) for group in GROUPS), "a name stands twice"
    questions = {*PROFILE_QUESTIONS, *RECIPE_QUESTIONS, *TRACE_QUESTIONS}
    assert questions <= set(BOXES)
    silent = {
        box.name for box in BOXES.values()
        if box.name not in questions and not box.clean and not box.causes and not box.techniques
    }  # fmt: skip
    assert silent - {"proved-by-measurement"} == BY_HAND


def test_boxes_name_causes_techniques_and_commands_that_exist() -> None:
    causes = {cause for rule in all_rules().values() for cause in rule.CAUSES}
    of_doctor = frozenset(causes)
    causes |= {cause for rule in all_trace_rules().values() for cause in rule.CAUSES}
    for box in BOXES.values():
        assert set(box.causes) <= causes, box.name
        assert set(box.techniques) <= set(all_techniques()), box.name
        assert box.priority in (1, 2, 3), box.name
        assert not box.clean or of_doctor & set(box.causes), box.name
        for line in (box.finds, box.closes):
            _check_command(line)


def _check_command(line: str) -> None:
    """A line that begins with our name is a command with options that it has."""
    if not line.startswith("ridgeline "):
        return
    own = line.split(" -- ", maxsplit=1)[0]
    words = own.split()[1:]
    name = next(" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS)
    known = {word for one in load_command(name).params for word in one.opts} | {"--help"}
    assert set(re.findall(r"--[a-z-]+", own)) <= known, line
    only = re.search(r"--only (\S+)", own)
    assert only is None or only[1] in all_techniques(), line
    if name == "calc":
        assert run(["calc", "--json"]) == 0
