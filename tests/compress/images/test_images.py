"""`ridgeline compress` of an image classifier: rows, what loads it again, one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageClassification, ResNetConfig

from ridgeline.cli.main import run
from ridgeline.compress.images.measure import divergence, speedup, time_in_turns
from ridgeline.compress.images.saved import load


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ResNet of random weights, and images beside it."""
    folder = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=3
    )
    AutoModelForImageClassification.from_config(config).save_pretrained(folder / "model")
    save_file(
        {"pixel_values": torch.randn(120, 3, 32, 32), "labels": torch.arange(120) % 3},
        folder / "images.safetensors",
    )
    return folder


@pytest.fixture(scope="module")
def pruned(given: Path) -> Path:
    """By taylor, exported too."""
    words = ["compress", str(given / "model"), "--scheme", "50%-channels-taylor", "--device", "cpu"]
    words += ["--calibration", str(given / "images.safetensors"), "--export", "torch-export"]
    assert run([*words, "--out", str(given / "pruned"), "--no-speed", "--json"]) == 0
    return given / "pruned"


def pixels(given: Path) -> torch.Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_rows_say_what_was_saved_and_what_it_cost(pruned: Path) -> None:
    ledger: dict[str, Any] = json.loads((pruned / "ledger.json").read_text())
    first, row = ledger["rows"]
    assert ledger["protocol"]["judged"] == 12
    assert ledger["protocol"]["calibrated"] == 108
    assert row["flops"] < 0.5 * first["flops"]
    assert row["disk_bytes"] < 0.5 * first["disk_bytes"]
    model = load("MODEL", pruned)
    assert sum(p.numel() for p in model.parameters()) == row["parameters"]
    assert 0 < row["divergence"]["kl_mean"] < 10
    assert not pruned.with_name("pruned.partial").exists()


@pytest.mark.filterwarnings("default:The given buffer is not writable")  # torch 2.11 itself
def test_transformers_and_torch_load_it_without_ridgeline(
    given: Path, pruned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    assert "ridgeline" not in (pruned / "pruned_model.py").read_text()
    theirs = AutoModelForImageClassification.from_pretrained(pruned, trust_remote_code=True).eval()
    program = torch.export.load(pruned / "model.pt2").module()
    with torch.no_grad():
        wanted = load("MODEL", pruned)(pixels(given)).logits
        assert torch.equal(theirs(pixels(given)).logits, wanted)
        torch.testing.assert_close(program(pixels(given)), wanted)
    theirs.save_pretrained(tmp_path / "again")  # as a fine-tuning does
    with torch.no_grad():
        assert torch.equal(load("MODEL", tmp_path / "again")(pixels(given)).logits, wanted)


def test_a_pruned_model_is_pruned_once_more(
    given: Path, pruned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compress", str(pruned), "--scheme", "50%-channels-global", "--no-speed"]
    words += ["--text", str(given / "images.safetensors"), "--out", str(tmp_path / "out")]
    assert run([*words, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "50%-channels" in shown
    assert load("MODEL", tmp_path / "out").classifier[1].in_features == 8


def test_models_are_timed_in_turns() -> None:
    models = [torch.nn.Linear(4, 4), torch.nn.Sequential(*[torch.nn.Linear(4, 4)] * 50)]
    small, large = time_in_turns(models, torch.zeros(2, 4), rounds=6, round_seconds=0.0)
    assert len(small.round_seconds) == len(large.round_seconds) == 6
    assert small.batch == 2
    found = speedup(large, small)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low <= found.ratio <= found.ci_high


def test_what_lost_too_much_is_not_saved(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compress", str(given / "model"), "--scheme", "80%-channels", "--no-speed"]
    words += ["--calibration", str(given / "images.safetensors"), "--max-loss", "kl+0.000001"]
    assert run([*words, "--device", "cpu", "--out", str(tmp_path / "out")]) == 3
    assert "more than kl+0.000001" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheme", "w8a8"], "prunes channels"),
        (["--scheme", "50%-channels-wanda"], "choose magnitude or taylor"),
        (["--scheme", "50%-channels", "--max-loss", "ppl+1%"], "no perplexity"),
        (["--scheme", "50%-channels", "--context", "8"], "--context"),
        (["--scheme", "50%-channels", "--export", "onnx"], "torch-export"),
        (["--scheme", "50%-channels", "--text", "nowhere"], "no such file"),
        (["--scheme", "50%-channels", "--text", "MODEL/config.json"], "is no folder of images"),
        (["--scheme", "50%-channels", "--text", "MODEL/model.safetensors"], "pixel_values"),
        ([], "--scheme"),
    ],
)
def test_bad_input_is_one_line(
    given: Path, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(given / "model")
    words = ["compress", model, *(word.replace("MODEL", model) for word in words)]
    if "--text" not in words:
        words += ["--calibration", str(given / "images.safetensors")]
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err.strip()
    assert said in complaint
    assert "\n" not in complaint
    assert list(tmp_path.iterdir()) == []


def test_kl_and_agreement_are_those_of_the_textbook() -> None:
    given = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    other = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    found = divergence(given, other)
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(0)
    assert found.kl_mean == pytest.approx(float((p * (p / q).log()).sum()) / 2)
    assert found.agreement == 1.0
