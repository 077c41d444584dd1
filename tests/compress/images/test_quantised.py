"""`ridgeline compress --scheme w8a8-int8` of vision models: what is judged, saved, and refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ridgeline.cli.main import run
from ridgeline.compress.images import latency
from ridgeline.compress.images.answers import mcnemar, share
from ridgeline.compress.images.limits import image_limit
from ridgeline.errors import InputError
from ridgeline.records.image_compression import Latency

pytest.importorskip("onnxruntime")


def compress(model: Path | str, out: Path, *words: str) -> int:
    return run(["compress", str(model), "--scheme", "w8a8-int8", "--out", str(out), *words])


@pytest.fixture(scope="module")
def quantised(digits: Path) -> Path:
    """With the costs of each layer and the times of calls."""
    out = digits / "quantised"
    words = ["--calibration", str(digits / "calibration"), "--images", str(digits / "held")]
    assert compress(digits / "model", out, *words, "--mixed", "--max-loss", "top1-2%") == 0
    return out


def ledger_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ledger.json").read_text())


@pytest.mark.slow
def test_rows_say_how_many_answers_changed(quantised: Path) -> None:
    ledger = ledger_of(quantised)
    first, row = ledger["rows"]
    assert ledger["protocol"]["judged"] == 597
    assert ledger["protocol"]["calibrated"] == 200
    assert first["quality"]["accuracy"] > 0.9
    agreement, changed = row["answers"]["agreement"], row["answers"]["changed"]
    assert agreement["count"] >= 0.95 * agreement["of"]
    assert agreement["ci_low"] < agreement["count"] / agreement["of"] <= agreement["ci_high"]
    gained = (changed["won"] - changed["lost"]) / 597
    assert row["quality"]["accuracy"] == pytest.approx(first["quality"]["accuracy"] + gained)
    assert row["answers"]["sqnr_db"] > 15
    assert row["disk_bytes"] < 0.75 * first["disk_bytes"]  # of so small a net the graph is much
    assert "ONNX Runtime" in row["computed_with"]


@pytest.mark.slow
def test_every_layer_is_planned_and_ranked(quantised: Path) -> None:
    layers = ledger_of(quantised)["rows"][1]["layers"]
    kinds = [one["kind"] for one in layers]
    assert kinds.count("convolution") >= 8
    assert kinds.count("linear") == 1
    assert sum(one["sqnr_db"] is not None for one in layers) >= 8


@pytest.mark.slow
def test_calls_are_timed_in_the_same_runtime(quantised: Path) -> None:
    first, row = ledger_of(quantised)["rows"]
    runtimes = {one["runtime"].split()[0] for one in first["calls"]}
    assert runtimes == {"PyTorch", "ONNX"}
    assert {one["batch"] for one in row["calls"]} == {1, 8}
    for one in row["calls"]:
        assert one["p50"]["seconds"] <= one["p99"]["seconds"]
        assert one["p50"]["ci_low"] <= one["p50"]["seconds"] <= one["p50"]["ci_high"]
    assert row["speedup"]["rounds"] == 12


@pytest.mark.slow
def test_what_was_judged_is_what_was_saved(digits: Path, quantised: Path) -> None:
    """The ONNX file, and the program in a process that knows torch alone, answer alike."""
    import onnxruntime

    images = np.random.default_rng(0).normal(size=(4, 3, 32, 32)).astype(np.float32)
    np.save(digits / "images.npy", images)
    code = (
        "import sys, numpy, torch\n"
        "import torch.ao.quantization.fx._decomposed\n"
        "program = torch.export.load(sys.argv[1]).module()\n"
        "made = program(torch.from_numpy(numpy.load(sys.argv[2])))\n"
        "numpy.save(sys.argv[3], made.detach().numpy())\n"
    )
    made = digits / "made.npy"
    words = [str(quantised / "model.pt2"), str(digits / "images.npy"), str(made)]
    subprocess.run([sys.executable, "-c", code, *words], check=True)
    session = onnxruntime.InferenceSession(str(quantised / "model.onnx"))
    own = session.run(None, {session.get_inputs()[0].name: images})[0]
    assert np.abs(own - np.load(made)).max() < 0.05 * np.abs(own).max()
    weights = load_file(quantised / "weights.safetensors")
    assert sum(one.dtype == torch.int8 for one in weights.values()) >= 8
    floats = sum(one.numel() for one in weights.values() if one.dtype == torch.float32)
    levels = sum(one.numel() for one in weights.values() if one.dtype == torch.int8)
    assert floats < 0.2 * levels


@pytest.mark.slow
def test_a_saved_model_is_evaluated_again(
    digits: Path, quantised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ledger_of(quantised)["rows"][1]
    words = ["evaluate", str(quantised), "--images", str(digits / "held")]
    assert run([*words, "--against", str(digits / "model"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row"]["quality"]["accuracy"] == pytest.approx(row["quality"]["accuracy"])
    assert found["row"]["answers"]["agreement"] == row["answers"]["agreement"]


def shards(digits: Path, folder: Path) -> Path:
    """The held images without labels, as one shard."""
    path = folder / "held.tar"
    with tarfile.open(path, "w") as file:
        for place, image in enumerate(sorted((digits / "held").rglob("*.png"))[:50]):
            member = tarfile.TarInfo(f"{place:04d}.png")
            member.size = image.stat().st_size
            file.addfile(member, io.BytesIO(image.read_bytes()))
    return path


@pytest.mark.slow
def test_a_script_without_labels_is_judged_by_agreement_alone(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"{digits / 'script.py'}:network"
    words = ["--calibration", str(digits / "calibration"), "--no-speed", "--json"]
    words += ["--images", str(shards(digits, tmp_path))]
    assert compress(script, tmp_path / "out", *words, "--max-loss", "agreement-0.9") == 0
    ledger = json.loads(capsys.readouterr().out)
    assert ledger["protocol"]["labelled"] is False
    assert ledger["protocol"]["preprocess"] == "the script's preprocess()"
    assert "quality" not in ledger["rows"][1] or ledger["rows"][1]["quality"] is None
    assert ledger["rows"][1]["answers"]["agreement"]["of"] == 50


@pytest.mark.slow
def test_what_lost_too_much_is_not_saved(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--calibration", str(digits / "calibration"), "--images", str(digits / "held")]
    words += ["--no-speed", "--max-loss", "kl+0.00000001"]
    assert compress(digits / "model", tmp_path / "out", *words) == 3
    assert "more than kl+0.00000001" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("script.py:broken", [], "fails with weights are gone"),
        ("script.py:no_module", [], "gives a int; return an nn.Module"),
        ("script.py:nowhere", [], "defines no 'nowhere'; it has Scaled, network"),
        ("script.py:network", ["--crop", "16"], "the script has its own preprocess"),
        ("nowhere.pt2", [], "no such file"),
        ("model", ["--images", "nowhere"], "no such file or folder"),
        ("model", ["--max-loss", "agreement-3"], "give agreement-0.93"),
        ("model", ["--scheme", "50%-channels"], "nothing can follow it"),
        ("model", ["--mean", "1,2"], "give three numbers"),
        ("model", ["--faster", "2"], "--for latency"),
        ("model", ["--target", "kl+0.1"], "use --mixed, with --max-loss"),
    ],
)
def test_bad_input_is_one_line(
    digits: Path,
    model: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*words, "--calibration", str(digits / "calibration"), "--no-speed"]
    assert compress(digits / model, tmp_path / "out", *words) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_too_few_images_are_told_with_how_many_it_takes(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "few.npz", images=np.zeros((24, 8, 8), dtype=np.uint8))
    words = ["--calibration", str(tmp_path / "few.npz"), "--no-speed"]
    assert compress(digits / "script.py:network", tmp_path / "out", *words) == 2
    assert "give others by --images PATH, or 100 in --calibration" in capsys.readouterr().err


@pytest.mark.slow
def test_pruning_for_latency_is_refused_where_it_gains_too_little(
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latency, "ROUND_SECONDS", 0.01)
    words = ["compress", str(digits / "model"), "--scheme", "50%-channels", "--json"]
    words += ["--for", "latency", "--faster", "100", "--images", str(digits / "held")]
    assert run([*words, "--no-speed", "--out", str(tmp_path / "out")]) == 3
    assert "as fast at batch 1, not 100 ×" in capsys.readouterr().err
    assert run([*words, "--out", str(tmp_path / "out")]) == 3
    found = json.loads(capsys.readouterr().out)
    shown = found["rows"][-1]["speedup"]["ratio"]
    assert f"are {shown:.2f} × as fast at batch 1, not 100 ×" in found["refused"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_fastest_of_several_prunings_is_judged_by_times_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of several ratios, 2 ×, is 1.2 × when timed again; the net takes two images."""
    (tmp_path / "pair.py").write_text(PAIR)
    random = np.random.default_rng(0).normal(size=(12, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", left=random, right=random + 1)
    calls = []

    def in_turns(models: list[torch.nn.Module], images: Any, **_: Any) -> list[Latency]:
        models[-1](*images)
        calls.append(len(models))
        times = [1.0, 0.5] if len(calls) == 1 else [1.2, 1.0]
        return [latency_of(times[0])] + [latency_of(times[1])] * (len(models) - 1)

    monkeypatch.setattr(latency, "time_in_turns", in_turns)
    monkeypatch.setattr(latency, "MULTIPLES", (1, 8))
    monkeypatch.setattr(latency, "SCOPES", ("layer",))
    words = ["--calibration", str(tmp_path / "pairs.npz"), "--no-speed", "--for", "latency"]
    words += ["--images", str(tmp_path / "pairs.npz"), "--scheme", "50%-channels"]
    end = run(
        [
            "compress",
            f"{tmp_path}/pair.py:Pair",
            *words,
            "--faster",
            "1.6",
            "--out",
            f"{tmp_path}/o",
        ]
    )
    said = capsys.readouterr().err
    assert (end, "1.20 × as fast at batch 1, not 1.6 ×" in said) == (3, True), said
    assert calls == [3, 2]
    assert not (tmp_path / "o").exists()


PAIR = """
import torch

class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 128, 3, padding=1)
        self.second = torch.nn.Conv2d(128, 128, 3, padding=1)
        self.last = torch.nn.Conv2d(128, 2, 1)

    def forward(self, left, right):
        left, right = self.first(left).relu(), self.first(right).relu()
        return self.last(self.second(left - right).relu())
"""


def latency_of(seconds: float) -> Latency:
    return Latency(
        seconds=seconds,
        round_seconds=(seconds,) * 12,
        batch=1,
        dtype="float32",
        device="cpu",
        threads=1,
    )


def test_intervals_and_tests_are_those_of_the_textbook() -> None:
    """Wilson's interval by its definition: the shares whose normal test does not reject."""
    one = share(45, 50)
    for bound in (one.ci_low, one.ci_high):
        assert abs(0.9 - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / 50) ** 0.5)
    scipy = pytest.importorskip("scipy.stats")
    assert mcnemar(3, 11) == pytest.approx(scipy.binomtest(3, 14).pvalue)
    with pytest.raises(InputError, match="no perplexity"):
        image_limit("--max-loss", "ppl+1%")
