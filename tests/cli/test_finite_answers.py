"""Whatever model and device are asked for: finite numbers, or one line. Never NaN, never null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.cost.training.layouts import PRECISIONS
from ridgeline.errors import RidgelineError
from ridgeline.hardware import devices
from ridgeline.models import preset, preset_names
from ridgeline.records.estimate import CoefficientChange

EMPTY_ON_PURPOSE = {
    "seq", "num_layers", "vector_flops_per_second", "measured",  # of a roofline
    "images_per_second_per_gpu", "bill", "usd_per_step", "times_slower", "times_faster",
    "step_seconds", "layout", "best",  # of a what-if under which nothing fits
    "interval", "cost", "ttft_seconds", "users", "rate",
}  # fmt: skip
"""Keys that may be null; `step_seconds` of an estimate may not, which is looked at apart."""
KINDS = {"decoder": "GPT-2", "mixture": "Mixtral-8x7B", "latent": "DeepSeek-V2-Lite",
         "encoder": "BERT-base", "both": "T5-small", "images": "ViT-B/16"}  # fmt: skip

NETWORKS = ("resnet50", "efficientnet_b4", "mobilenetv3_large_100", "vit_small_patch16_224",
            "swin_tiny_patch4_window7_224", "maxvit_tiny_tf_224", "ssd300_vgg16",
            "sequencer2d_s", "resnetv2_50x1_bit", "deeplabv3_resnet50")  # fmt: skip


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any] | None:
    """The answer; None when it was refused in one line."""
    code = run([*words, "--json"])
    seen = capsys.readouterr()
    if code != 0:
        assert (code, seen.out, seen.err.count("\n")) == (2, "", 1), (words, seen)
        return None
    found = json.loads(seen.out, parse_constant=lambda word: pytest.fail(f"{words}: {word}"))
    assert isinstance(found, dict)
    return found


def nulls(value: object, key: str = "") -> set[str]:
    if isinstance(value, dict):
        return set().union(*(nulls(item, name) for name, item in value.items()), set())
    if isinstance(value, list):
        return set().union(*(nulls(item, key) for item in value), set())
    return {key} if value is None else set()


def sequence(model: str) -> list[str]:
    return [] if preset(model).kind == "vision" else ["--seq", "512"]


def training(model: str, cluster: str) -> list[str]:
    return ["--model", model, "--cluster", cluster, "--global-batch", "64", *sequence(model)]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("model", preset_names())
def test_every_model_is_predicted_in_finite_numbers(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "predict", "training", *training(model, "8xH100"))
    assert found is not None
    assert found["step_seconds"] > 0
    of_images = {"run", "cores_given"} if preset(model).kind == "vision" else set()
    assert nulls(found) <= {"images_per_second_per_gpu"} | of_images


@pytest.mark.sweep(every=24)
@pytest.mark.parametrize("device", [one.name for one in devices()])
def test_every_device_and_precision_is_finite_or_refused(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for precision in PRECISIONS:
        words = [*training("GPT-2", f"8x{device}"), "--precision", precision]
        found = asked(capsys, "predict", "training", *words)
        assert found is None or nulls(found) <= {"images_per_second_per_gpu"}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("model", [*KINDS.values(), *NETWORKS])
def test_every_kind_of_model_has_a_roofline_in_finite_numbers(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for phase in ("train", "prefill", "decode"):
        found = asked(capsys, "roofline", model, "--device", "h100", "--phase", phase)
        assert found is None or nulls(found) <= EMPTY_ON_PURPOSE


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("model", [model for kind, model in KINDS.items() if kind != "images"])
def test_every_kind_of_model_is_planned_and_explained_in_finite_numbers(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, "plan", "training", *training(model, "8xH100"), "--tokens", "1B")
    assert found is not None
    assert nulls(found) <= EMPTY_ON_PURPOSE
    assert nulls(found["best"]) <= {"images_per_second_per_gpu"}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(found))
    explained = asked(capsys, "explain", str(plan), str(plan))
    assert explained is not None
    assert nulls(explained) == set()


@pytest.mark.parametrize("model", KINDS.values())
def test_what_generates_no_tokens_is_refused_by_that_name(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", model, "--gpu", "H100", "--prompt", "64", "--answer", "32", "--rate", "1"]
    code = run(["predict", "serving", *words])
    seen = capsys.readouterr().err
    assert code in (0, 2)
    assert ("no causal language model" in seen) == (preset(model).kind != "decoder")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_model_of_images_is_predicted_in_images(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "ViT-B/16", "--cluster", "8xH100", "--global-batch", "512"]
    assert run(["predict", "training", *words, *flags]) == 0
    assert ("images_per_second_per_gpu" if flags else "images/s") in capsys.readouterr().out
    assert run(["plan", "training", *words, "--images", "1.28M", *flags]) == 0


def test_a_recipe_is_not_written_for_what_cannot_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recipe.toml"
    for model, says in (("ViT-B/16", "--write"), ("BERT-base", "causal language models")):
        words = training(model, "8xH100")
        assert run(["plan", "training", *words, "--write", str(out)]) == 2
        assert says in capsys.readouterr().err
        assert not out.exists()


def test_an_answer_that_is_not_finite_is_our_failure_and_says_so() -> None:
    with pytest.raises(RidgelineError, match="the after that was computed is not finite") as caught:
        CoefficientChange(name="gemm", before=0.5, after=float("nan"))
    assert caught.value.exit_code == 1
    with pytest.raises(RidgelineError):
        msgspec.convert({"name": "gemm", "before": float("inf"), "after": 1.0}, CoefficientChange)
