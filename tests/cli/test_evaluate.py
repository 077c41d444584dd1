"""`ridgeline evaluate`: what it prints, its JSON, and one line on bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ridgeline.cli.main import run

LIBRARY = str(Path(__file__).parents[2] / "examples/models/library")
TEXT = (Path(json.__file__).parent / "scanner.py").read_text()


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "held.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.slow
def test_the_protocol_is_printed_beside_the_perplexity(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ["evaluate", LIBRARY, "--text", text, "--context", "64", "--stride", "32"]
    assert run([*words, "--device", "cpu", "--no-speed"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in ("perplexity, per token", "token accuracy", "context 64, stride 32, no BOS",
                 "tokens scored", "words", "computed with transformers"):  # fmt: skip
        assert part in said


@pytest.mark.slow
def test_decoding_is_measured_in_turns_with_the_reference(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", LIBRARY, "--text", text, "--context", "64", "--reference", LIBRARY]
    assert run([*words, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own, theirs = found["decoding"], found["reference_decoding"]
    assert len(own["step_seconds"]) == len(theirs["step_seconds"]) == found["speedup"]["rounds"]
    assert own["held_bytes"] == theirs["held_bytes"] > 0
    # A model beside itself: whatever the interval, it is no wonder of speed.
    assert 0.2 < found["speedup"]["ratio"] < 5
    assert found["divergence"]["kl_mean"] == 0.0


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["/nowhere", "--text", "{text}"], "/nowhere"),
        ([LIBRARY, "--text", "/nowhere.txt"], "--text /nowhere.txt"),
        ([LIBRARY, "--text", "{text}", "--context", "4000"], "--context 4000"),
        ([LIBRARY, "--text", "{text}", "--context", "64", "--stride", "65"], "--stride 65"),
        ([LIBRARY, "--text", "{short}", "--context", "64"], "fewer than one window of 64"),
        ([LIBRARY, "--text", "{binary}"], "is UTF-16 text"),
        ([LIBRARY, "--text", "{text}", "--device", "tpu"], "'tpu' is not one of"),
        ([LIBRARY, "--text", "{text}", "--reference", "/nowhere"], "--reference /nowhere"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("import os")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    places = {"text": text, "short": tmp_path / "short.txt", "binary": tmp_path / "binary.txt"}
    assert run(["evaluate", *(word.format(**places) for word in words), "--no-speed"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert line in said[-1]
    assert said[-1].startswith("ridgeline: ")


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda tensors: tensors["model.norm.weight"].fill_(float("nan")), "inf or NaN"),
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "are missing, such as"),
        (
            lambda tensors: tensors.update({"model.layers.4.own.weight": torch.zeros(2)}),
            "belong to no model that config.json describes, such as model.layers.4.own.weight",
        ),
    ],
    ids=["NaN", "missing", "unknown"],
)
def test_a_damaged_model_is_one_line(
    damage: Callable[[dict[str, torch.Tensor]], object],
    line: str,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    shutil.copytree(LIBRARY, model)
    tensors = load_file(model / "model.safetensors")
    damage(tensors)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert run(["evaluate", str(model), "--text", text, "--context", "64", "--no-speed"]) == 2
    assert line in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
def test_first_and_recent_tokens_alone_are_judged_under_that_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.txt"
    path.write_text(TEXT[:900])
    words = ["evaluate", LIBRARY, "--text", str(path), "--context", "64", "--device", "cpu"]
    assert run([*words, "--kv-recent", "9", "--kv-first", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = AutoModelForCausalLM.from_pretrained(LIBRARY, attn_implementation="eager").eval()
    tokens = AutoTokenizer.from_pretrained(LIBRARY)(TEXT[:900]).input_ids
    losses: dict[bool, list[float]] = {True: [], False: []}
    for start in range(0, len(tokens) - 1, 64):
        window = torch.tensor([tokens[start : start + 64]])
        at = torch.arange(window.shape[1])
        behind = at[:, None] - at
        for narrow, chosen in losses.items():
            seen = (behind >= 0) & ((behind < (9 if narrow else 64)) | (at < 2))
            mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None]
            with torch.inference_mode():
                said = model(window, attention_mask=mask).logits[0, :-1].log_softmax(-1)
            chosen.extend((-said.gather(1, window[0, 1:, None])).squeeze(1).tolist())
    means = {narrow: sum(chosen) / len(chosen) for narrow, chosen in losses.items()}
    assert found["quality"]["loss"] == pytest.approx(means[True], rel=1e-4)
    assert found["reference_quality"]["loss"] == pytest.approx(means[False], rel=1e-4)
    assert found["seen"] == {"recent": 9, "first": 2}
    assert found["divergence"]["kl_mean"] > 0.0
