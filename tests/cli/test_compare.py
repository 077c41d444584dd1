"""`ridgeline compare`, driven as a program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import msgspec
import pytest
import typer
from tests.realtime.recorded import recorded_run
from tests.report.records import (
    a_ledger,
    a_profile,
    an_environment,
    findings,
    neutral,
    step_samples,
)
from tests.report.test_load_test import found_by as a_load_test
from typer.testing import CliRunner

from ridgeline import records
from ridgeline.cli import main
from ridgeline.cli.compare import compare
from ridgeline.diagnose.doctor import Examination
from ridgeline.errors import InputError, Regression
from ridgeline.measure.compare.readers import READERS, UNTIMED
from ridgeline.records.calls import CallTimes, Quantile
from ridgeline.records.compression import (
    CompressionLedger,
    CompressionRow,
    Decoding,
    Evaluation,
    Protocol,
    Quality,
)
from ridgeline.records.image_compression import (
    ImageLedger,
    ImageProtocol,
    ImageQuality,
    ImageRow,
    Latency,
)
from ridgeline.records.layout import Layout
from ridgeline.records.realtime_ledger import FrameFigures, RealtimeLedger
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.records.runtime_export import ExportRow, ExportSpeed, RuntimeExport
from ridgeline.records.served import DecodeBench
from ridgeline.records.training_run import Beside, TrainingRun

app = typer.Typer(add_completion=False)
app.command()(compare)

MEDIAN_SECONDS = 0.2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    doctor = {"findings": findings(), "verdict": "compute-bound", "limit_fraction": 0.5}
    doctor["profile"] = a_profile(MEDIAN_SECONDS)
    runs = {
        "a": doctor,
        "same": a_profile(
            MEDIAN_SECONDS, step_samples=step_samples(MEDIAN_SECONDS, count=90, seed=7)
        ),
        "slow": a_profile(1.2 * MEDIAN_SECONDS),
        "tuned": a_ledger(),
    }
    for name, record in runs.items():
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(record))
    return tmp_path


def run(*arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, list(arguments))
    return result.stdout, result.exception


def test_no_difference_ends_well(folder: Path) -> None:
    output, error = run("a.json", "same.json")
    assert error is None
    assert output.startswith("no difference beyond noise and 2 %")


def test_a_slower_run_is_a_regression_and_names_the_phase(folder: Path) -> None:
    output, error = run("a.json", "slow.json")
    assert isinstance(error, Regression)
    assert error.exit_code == 3
    assert "1.20× slower" in output
    assert re.fullmatch(r"slow\.json is 1\.20× slower \[.*\]; backward takes .* more.*", str(error))


def test_a_tuned_ledger_is_faster_than_its_baseline(folder: Path) -> None:
    output, error = run("a.json", "tuned.json")
    assert error is None
    assert re.match(r"2\.1\d× faster", output)


def test_the_threshold_lets_a_known_slowdown_pass(folder: Path) -> None:
    _, error = run("a.json", "slow.json", "--threshold", "0.5")
    assert error is None


def test_json_is_one_document_with_the_documented_keys(folder: Path) -> None:
    output, error = run("a.json", "slow.json", "--json", "--history", "h.jsonl")
    assert isinstance(error, Regression)
    document = json.loads(output)
    assert list(document) == [
        "record",
        "verdict",
        "slowdown",
        "mean_slowdown",
        "decided_by",
        "threshold",
        "confidence",
        "reference",
        "new",
        "phases",
        "slower_phase",
        "peak_memory_ratio",
        "warnings",
        "metric",
        "metric_slowdown",
        "part",
        "parts",
        "history",
    ]
    assert document["verdict"] == "slower"
    assert list(document["slowdown"]) == ["ratio", "ci_low", "ci_high"]
    assert document["slowdown"]["ci_low"] > 1.02
    assert list(document["new"]) == [
        "source",
        "record",
        "unit",
        "step_seconds",
        "steps",
        "peak_memory_bytes",
        "origin",
    ]
    assert list(document["phases"][0]) == [
        "name",
        "reference_seconds",
        "new_seconds",
        "difference_seconds",
    ]
    assert list(document["history"]) == [
        "file",
        "verdict",
        "entries",
        "left_out",
        "slowdown",
        "first_bad",
        "changes",
        "warnings",
    ]


def test_every_key_of_the_json_is_in_the_reference(folder: Path) -> None:
    output, _ = run("a.json", "slow.json", "--json", "--history", "h.jsonl")
    page = Path(__file__).parents[2] / "docs" / "reference" / "compare.md"
    text = page.read_text()
    keys = set(re.findall(r'"(\w+)": ', output)) - {"OMP_NUM_THREADS"}
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_markdown_goes_to_a_file_or_to_stdout(folder: Path) -> None:
    table, _ = run("a.json", "slow.json", "--markdown", "comment.md")
    comment = (folder / "comment.md").read_text()
    assert comment.startswith("### Ridgeline: 1.20× slower")
    assert "1.20× slower" in table
    output, _ = run("a.json", "slow.json", "--markdown", "-")
    assert output == comment


def test_json_and_markdown_cannot_share_stdout(folder: Path) -> None:
    output, error = run("a.json", "slow.json", "--json", "--markdown", "-")
    assert isinstance(error, InputError)
    assert output == ""


@pytest.mark.parametrize("name", ["missing.json", "text.json"])
def test_a_bad_file_is_bad_input_and_adds_nothing_to_the_history(folder: Path, name: str) -> None:
    (folder / "text.json").write_text("step: 3")
    output, error = run("a.json", name, "--history", "h.jsonl")
    assert isinstance(error, InputError)
    assert name in str(error)
    assert output == ""
    assert not (folder / "h.jsonl").exists()


@pytest.mark.slow
def test_a_drift_that_no_single_comparison_sees_fails_by_the_history(folder: Path) -> None:
    errors = []
    for week in range(24):
        median = MEDIAN_SECONDS * (1 + 0.008 * max(0, week - 10))
        profile = a_profile(median, step_samples=step_samples(median, seed=week))
        before, after = folder / "before.json", folder / "after.json"
        before.write_bytes(
            after.read_bytes() if after.exists() else (folder / "a.json").read_bytes()
        )
        after.write_bytes(msgspec.json.encode(profile))
        _, error = run("before.json", "after.json", "--history", "h.jsonl", "--threshold", "0.03")
        errors.append(error)
    assert errors[:14] == [None] * 14
    last = errors[-1]
    assert isinstance(last, Regression)
    line = re.search(r"since h\.jsonl:(\d+) \(after\.json", str(last))
    assert line is not None
    assert 12 <= int(line.group(1)) <= 18


def test_different_machines_are_warned_about(folder: Path) -> None:
    profile = a_profile(MEDIAN_SECONDS)
    origin = msgspec.structs.replace(profile.environment, device="NVIDIA H100")
    moved = msgspec.structs.replace(profile, environment=origin)
    (folder / "moved.json").write_bytes(msgspec.json.encode(moved))
    output, error = run("a.json", "moved.json")
    assert error is None
    assert "warning: different device: AMD EPYC 9R14 → NVIDIA H100" in output


def test_compare_starts_without_torch_and_without_plotly() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import ridgeline.cli.compare, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {"torch", "plotly"}.isdisjoint(loaded)


# The kinds of record


def a_recipe() -> Recipe:
    return Recipe(
        model=RecipeModel(config="gpt2"), data=RecipeData(seq=64), layout=Layout(),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    )  # fmt: skip


def documents() -> dict[str, object]:
    """One of each kind that is measured, as its command writes it."""
    rounds = tuple(step_samples(0.01, count=8))
    decoding = neutral(Decoding, step_seconds=rounds, tokens_per_second=100.0)
    latency = neutral(Latency, seconds=0.01, round_seconds=rounds)
    environment = an_environment()
    return {
        "doctor": Examination(
            profile=a_profile(), findings=[], verdict="compute-bound", limit_fraction=0.5
        ),
        "profile": a_profile(),
        "tuning": a_ledger(),
        "training-run": neutral(
            TrainingRun, step_samples=step_samples(0.1), environment=environment, processes=2,
            recipe=a_recipe(), phases={"forward": 0.1},
            peak_memory_bytes=Beside(predicted=None, measured=1e6),
            step_seconds=Beside(predicted=None, measured=0.1),
        ),
        "decode-bench": neutral(DecodeBench, step_samples=rounds, machine_rounds=()),
        "load-test": a_load_test(request_seconds=tuple(step_samples(1.0))),
        "compression": CompressionLedger(
            model="m", protocol=None, allowed=None, environment=environment,
            rows=(CompressionRow(scheme="w4a16", disk_bytes=1, decoding=decoding),),
        ),
        "image-compression": ImageLedger(
            model="m", protocol=neutral(ImageProtocol), allowed=None, environment=environment,
            rows=(neutral(ImageRow, quality=neutral(ImageQuality), latency=latency),),
        ),
        "evaluation": neutral(
            Evaluation, decoding=decoding, environment=environment, protocol=neutral(Protocol),
            quality=neutral(Quality),
        ),
        "runtime-export": an_export({"eager": 1.0, "onnx": 0.5}),
        "realtime-run": msgspec.structs.replace(recorded_run(50), executor="inline"),
        "realtime-tuning": neutral(
            RealtimeLedger, rows=[], stack_rows=[], cumulative_ci=(1.0, 1.0), skipped={},
            baseline=neutral(FrameFigures, ages_seconds=rounds, stage_seconds={"image": 0.01}),
            environment=environment,
        ),
        "realtime-simulation": {
            "record": "realtime-simulation", "pipeline": "p", "ages_seconds": {"plan": rounds}
        },
        "queue-simulation": {
            "record": "queue-simulation", "trace": "t",
            "policies": [{"policy": "fifo", "completion_seconds": step_samples(60.0)}],
        },
        "simulation": {
            "record": "simulation", "model": "m", "request_seconds": step_samples(1.0)
        },
    }  # fmt: skip


def an_export(seconds: dict[str, float]) -> RuntimeExport:
    """Formats and what their calls take."""
    rows = []
    for name, mean in seconds.items():
        times = tuple(step_samples(mean, count=60))
        middle = Quantile(seconds=mean, low_seconds=None, high_seconds=None)
        closed = neutral(CallTimes, calls=60, call_seconds=times, p50=middle, p99=middle)
        speed = neutral(ExportSpeed, closed=closed)
        rows.append(ExportRow(format=name, precision="float32", status="ok", speed=speed))
    return neutral(
        RuntimeExport, rows=tuple(rows), threads=1, environment=an_environment(), inputs=1
    )


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("kind", READERS)
def test_every_measured_record_is_compared_with_itself(kind: str, folder: Path) -> None:
    (folder / "run.json").write_bytes(msgspec.json.encode(documents()[kind]))
    output, error = run("run.json", "run.json", "--json")
    assert error is None
    found = json.loads(output)
    assert (found["verdict"], found["new"]["record"]) == ("no difference", kind)
    assert found["new"]["steps"] >= 8
    output, error = run("run.json", "run.json")
    assert error is None
    assert f"median {found['new']['unit']}" in output


def test_records_that_time_different_things_are_not_compared(folder: Path) -> None:
    (folder / "load.json").write_bytes(msgspec.json.encode(documents()["load-test"]))
    _, error = run("a.json", "load.json")
    assert isinstance(error, InputError)
    assert "times each step and load.json each request" in str(error)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["predict", "training", "--model", "gpt2", "--cluster", "1xH100", "--seq", "64",
          "--global-batch", "1"], "ridgeline explain"),
        (["plan", "training", "--model", "gpt2", "--cluster", "1xH100", "--seq", "64",
          "--global-batch", "1"], "ridgeline explain"),
        (["roofline", "gpt2", "--device", "h100"], "bench decode"),
        (["hardware"], "bench decode"),
    ],
)  # fmt: skip
def test_what_was_not_measured_is_refused_by_its_kind(
    words: list[str], cure: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*words, "--json"]) == 0
    (folder / "answer.json").write_text(capsys.readouterr().out)
    assert main.run(["compare", "answer.json", "answer.json"]) == 2
    said = capsys.readouterr().err
    assert cure in said
    assert said.count("\n") == 1


FLEET = ["simulate", "serving", "--model", "llama3.1-8b", "--gpu", "H100", "--rate", "4",
         "--requests", "200", "--seed", "7"]  # fmt: skip


def test_simulated_fleets_are_compared_request_by_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, batch in (("eight", "8"), ("two", "2")):
        words = [*FLEET, "--max-sequences", batch, "--json"]
        assert main.run(words) == 0
        (folder / f"{name}.json").write_text(capsys.readouterr().out)
    assert main.run(["compare", "eight.json", "two.json"]) == 3
    shown = capsys.readouterr()
    assert "median request" in shown.out
    assert "slower" in shown.err


def test_simulated_pipelines_are_compared_frame_by_frame(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["realtime", "simulate", "bevdet-r50", "--frames", "200", "--json"]) == 0
    (folder / "camera.json").write_text(capsys.readouterr().out)
    assert main.run(["compare", "camera.json", "camera.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["new"]["unit"]) == ("no difference", "frame")
    assert found["new"]["steps"] == 200


def test_exported_formats_are_compared_one_by_one(folder: Path) -> None:
    for name, factor in (("before", 1.0), ("after", 1.3)):
        export = an_export({"eager": 1.0, "onnx": factor})
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(export))
    output, error = run("before.json", "after.json")
    assert isinstance(error, Regression)
    assert "format onnx float32" in str(error)
    assert "Formats (median)" in output
    _, error = run("before.json", "before.json")
    assert error is None


def test_every_kind_that_is_named_is_the_tag_of_a_record() -> None:
    every = {kind.__struct_config__.tag for kind in _records()}
    assert set(READERS) | set(UNTIMED) <= every
    assert set(documents()) == set(READERS)


def _records() -> list[type[msgspec.Struct]]:
    from ridgeline.plan import explain  # noqa: F401  # defines one

    for module in iter_modules(records.__path__, f"{records.__name__}."):
        import_module(module.name)
    found, left = [], [msgspec.Struct]
    while left:
        left += (children := left.pop().__subclasses__())
        found += children
    return found


def requests(count: int, *, spike: float, every: int = 40) -> dict[str, object]:
    """A load test of even requests, of which every fortieth is longer."""
    seconds = step_samples(MEDIAN_SECONDS, count=count, seed=count)
    seconds = [
        MEDIAN_SECONDS * spike if index % every == 7 else min(each, MEDIAN_SECONDS * 1.1)
        for index, each in enumerate(seconds)
    ]
    return {"record": "load-test", "request_seconds": seconds}


@pytest.fixture
def tails(folder: Path) -> Path:
    for name, content in {
        "even": requests(1000, spike=2.0),
        "tail": requests(1100, spike=3.0),
        "few": requests(200, spike=3.0),
        "together": {
            "record": "load-test",
            "request_seconds": sorted(requests(400, spike=3.0)["request_seconds"]),  # type: ignore[call-overload]
        },
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.slow
def test_a_tail_that_the_median_does_not_see_is_a_regression_of_p99(tails: Path) -> None:
    output, error = run("even.json", "tail.json", "--metric", "median")
    assert error is None
    output, error = run("even.json", "tail.json", "--metric", "p99")
    assert isinstance(error, Regression)
    assert re.match(r"1\.5\d?× slower \[1\.\d+, 1\.\d+\] at p99", output)
    output, error = run("tail.json", "even.json", "--metric", "p99", "--json")
    assert error is None
    document = json.loads(output)
    assert (document["verdict"], document["decided_by"]) == ("faster", "p99")
    assert document["metric_slowdown"]["ci_high"] < 1


def test_the_tail_itself_is_a_metric(tails: Path) -> None:
    output, error = run("even.json", "tail.json", "--metric", "p99/p50")
    assert isinstance(error, Regression)
    assert "more" in output.splitlines()[0]
    assert "p99/p50" in output.splitlines()[0]
    assert re.search(r"p99 / p50 +2\.\d+× +[23]\.\d+× +1\.\d+× \[", output)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("files", "metric", "said"),
    [
        (("even", "few"), "p99", "few.json: 200 requests cannot bound p99; it takes 368"),
        (("few", "even"), "p99/p50", "few.json: 200 requests cannot bound p99; it takes 368"),
        (("even", "tail"), "p99.9", "even.json: 1000 requests cannot bound p99.9; it takes 3688"),
        (("even", "together"), "p99", "slow requests come in clusters, so that 400 are worth"),
        (("even", "tail"), "p100", "--metric p100: give median, mean, a percentile"),
        (("even", "tail"), "p0", "--metric p0: give median, mean, a percentile"),
        (("even", "tail"), "p99/", "--metric p99/: give median, mean, a percentile"),
        (("even", "tail"), "slowest", "--metric slowest: give median, mean, a percentile"),
    ],
)
def test_a_figure_that_nothing_bounds_is_refused_with_what_it_takes(
    tails: Path, files: tuple[str, str], metric: str, said: str
) -> None:
    output, error = run(*(f"{name}.json" for name in files), "--metric", metric)
    assert output == ""
    assert isinstance(error, InputError)
    assert said in str(error)
