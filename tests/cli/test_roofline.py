"""`ridgeline roofline`: its JSON contract, its page, and one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.records import a_ledger, a_profile

from ridgeline.cli.main import run
from ridgeline.records.store import write_record

LLAMA = ["roofline", "llama-3-8b", "--device", "h100"]


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_document_has_these_keys(capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(capsys, *LLAMA, "--device", "b200", "--batch", "2", "--seq", "1024")
    assert set(whole) == {
        "record", "model", "phase", "batch", "seq", "num_layers", "weight_bytes", "flops",
        "moved_bytes", "devices", "measured",
    }  # fmt: skip
    assert (whole["model"], whole["phase"]) == ("Llama-3-8B", "train")
    assert (whole["batch"], whole["seq"], whole["num_layers"]) == (2, 1024, 32)
    devices = whole["devices"]
    assert isinstance(devices, list)
    assert [one["device"] for one in devices] == ["H100-SXM-80GB", "B200"]
    assert set(devices[0]["operators"][0]) == {
        "name", "direction", "kind", "shape", "dtype", "count", "flops", "moved_bytes",
        "intensity_flops_per_byte", "bound", "attainable_flops_per_second", "seconds", "share",
    }  # fmt: skip
    assert sum(one["share"] for one in devices[1]["operators"]) == pytest.approx(1.0)
    total = sum(one["seconds"] * one["count"] for one in devices[0]["operators"])
    assert total == pytest.approx(devices[0]["seconds"])


def test_a_measured_step_is_laid_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, ledger = a_profile(), a_ledger()
    for name, record in (("run.json", profile), ("ledger.json", ledger)):
        write_record(tmp_path / name, record)
    found = document(capsys, *LLAMA, "--measured", str(tmp_path / "run.json"))["measured"]
    assert isinstance(found, dict)
    timed = {(one.name, one.shapes, one.phase): one for one in profile.operators if one.flops}
    assert found["device"] == profile.environment.device
    assert len(found["operators"]) == len(timed)
    for shown in found["operators"]:
        one = timed[shown["name"], shown["shapes"], shown["phase"]]
        assert shown["attained_flops_per_second"] == pytest.approx(one.flops / one.seconds)
        assert shown["intensity_flops_per_byte"] == pytest.approx(one.flops / one.bytes)
    assert sum(shown["share"] for shown in found["operators"]) == pytest.approx(1.0)
    tuned = document(capsys, *LLAMA, "--measured", str(tmp_path / "ledger.json"))["measured"]
    assert isinstance(tuned, dict)
    assert tuned["step_seconds"] == ledger.tuned.step_seconds.p50  # type: ignore[union-attr]
    assert run([*LLAMA, "--measured", str(tmp_path / "run.json")]) == 0
    assert "most is left in" in " ".join(capsys.readouterr().out.split())


def test_a_profile_without_timed_operators_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "run.json", a_profile(operators=[]))
    assert run([*LLAMA, "--measured", str(tmp_path / "run.json")]) == 2
    assert "no operator that computes was timed" in capsys.readouterr().err


def test_what_a_name_leaves_open_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roofline", "qwen2.5-0.5b", "--device", "H100-SXM-400W"]) == 0
    assert "H100-SXM-400W: 400 of 700 W" in capsys.readouterr().out
    assert run(["roofline", "qwen2.5-0.5b", "--device", "H100"]) == 0
    assert "Assumed" not in capsys.readouterr().out


def test_decoding_is_bound_by_memory_and_training_by_compute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shares = {}
    for phase in ("train", "decode"):
        devices = document(capsys, *LLAMA, "--phase", phase)["devices"]
        assert isinstance(devices, list)
        shares[phase] = devices[0]["compute_bound_share"]
    assert shares["decode"] == 0.0
    assert shares["train"] > 0.85


def test_a_vision_transformer_has_its_patches_as_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = document(capsys, "roofline", "vit-base-patch16-224", "--device", "a100")
    assert whole["seq"] == 197


def test_images_have_no_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(capsys, "roofline", "resnet50", "--device", "a100", "--batch", "8")
    assert whole["seq"] is None
    assert whole["num_layers"] is None


def test_a_config_json_is_as_good_as_a_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 1000, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = document(capsys, "roofline", str(tmp_path / "config.json"), "--device", "h100")
    assert (whole["num_layers"], whole["seq"]) == (2, 512)


def test_the_page_is_written_beside_the_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "roof.html"
    assert run([*LLAMA, "--html", str(target)]) == 0
    assert "FLOP/byte" in capsys.readouterr().out
    assert "<h1>Llama-3-8B</h1>" in target.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-9b", "--device", "h100"], "unknown model 'llama-9b'; did you mean"),
        (["resnet51", "--device", "h100"], "or, of images, resnet51q, resnet50"),
        (["llama-3-8b", "--device", "h1000"], "unknown device 'h1000'; did you mean H100"),
        (["llama-3-8b"], "--device"),
        (["llama-3-8b", "--device", "h100", "--device", "H100"], "a device is named twice"),
        (["llama-3-8b", "--device", "h100", "--batch", "0"], "must be 1 or more"),
        (["llama-3-8b", "--device", "h100", "--seq", "-4"], "must be 1 or more"),
        (["llama-3-8b", "--device", "h100", "--phase", "warm"], "not one of 'train', 'prefill'"),
        (["gpt2", "--device", "h100", "--seq", "5000"], "learned positions for 1024 tokens"),
        (["bert-base", "--device", "h100", "--phase", "decode"], "generates no tokens"),
        (["resnet50", "--device", "h100", "--seq", "128"], "leave --seq out"),
        (["resnet50", "--device", "h100", "--phase", "decode"], "generates no tokens"),
        (["missing/config.json", "--device", "h100"], "missing/config.json"),
        (["gpt2", "--device", "h100", "--html", f"{__file__}/x.html"], "x.html: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["roofline", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ridgeline: ")
    assert message in captured.err
