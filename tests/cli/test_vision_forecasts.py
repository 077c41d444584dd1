"""`predict` and `plan` of networks for images: answers, and one line where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.vision_tutorial import PAGE, commands, options

from ridgeline.cli.main import run
from ridgeline.hardware import devices
from ridgeline.models.vision.presets import network_names
from ridgeline.records.vision_estimate import VisionInferenceEstimate, VisionTrainingEstimate
from ridgeline.records.vision_plan import VisionInferencePlan, VisionTrainingPlan

TRAIN = ["predict", "training", "--model", "resnet50", "--cluster", "8xA100", "--batch", "256"]
RUN = ["--images", "1.28M", "--epochs", "90"]
INFER = ["predict", "inference", "--model", "resnet50", "--device", "T4"]
PLAN = ["plan", "training", "--model", "resnet50", "--cluster", "8xV100,8xA100,64xA100", *RUN]
EMPTY = {"run", "cores_given", "usd", "usd_per_device_hour", "kilowatt_hours", "deadline"}
"""Keys that may be null."""


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0, capsys.readouterr().err
    whole = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert isinstance(whole, dict)
    return whole


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a refusal."""
    assert run(list(words)) == 2
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1), seen
    return seen.err


def nulls(value: object, key: str = "") -> set[str]:
    if isinstance(value, dict):
        return set().union(*(nulls(item, name) for name, item in value.items()), set())
    if isinstance(value, list):
        return set().union(*(nulls(item, key) for item in value), set())
    return {key} if value is None else set()


def test_one_measured_call_moves_other_batches_and_never_widens_an_interval(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = asked(capsys, *INFER, "--batch", "64")
    mine = tmp_path / "mine.json"
    seconds = 2.0 * asked(capsys, *INFER)["latency_seconds"]
    mine.write_text(json.dumps({"latency_seconds": seconds, "batch": 1, "model": "resnet50"}))
    found = asked(capsys, *INFER, "--batch", "64", "--measured", str(mine))
    ratio = found["latency_seconds"] / plain["latency_seconds"]
    assert 1.5 < ratio < 2.0  # part of what one call is off by is that call's alone
    assert found["calibrated"] == [{"name": "pace", "before": 1.0, "after": pytest.approx(ratio)}]
    assert sum(found["breakdown"].values()) == pytest.approx(found["latency_seconds"])
    wide, narrow = (one["interval"][1] / one["interval"][0] for one in (plain, found))
    assert 1.0 < narrow <= wide * (1.0 + 1e-9)
    (curve,) = asked(capsys, *INFER, "--batches", "1,64", "--measured", str(mine))["curves"]
    assert curve["points"][1]["estimate"]["latency_seconds"] == found["latency_seconds"]
    assert "give one --software" in refused(
        capsys, *INFER, "--batches", "1", "--software", "eager,tensorrt", "--measured", str(mine)
    )


def test_measured_steps_move_a_training_forecast_and_nonsense_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = asked(capsys, *TRAIN)
    mine = tmp_path / "mine.json"
    rate = 0.7 * plain["images_per_second"]
    mine.write_text(json.dumps([{"images_per_second": rate}] * 3))
    found = asked(capsys, *TRAIN, "--measured", str(mine))
    assert found["images_per_second"] == pytest.approx(rate, rel=0.05)
    for content, words in (
        ({"images_per_second": 0}, "above 0"),
        ({"latency_seconds": 1, "images_per_second": 1}, "latency_seconds or images_per_second"),
        ({"seconds": 1}, "seconds"),
        ({"latency_seconds": 1e5}, "give seconds"),
        ({"images_per_second": 1e-3}, "give images per second"),
        ([], "give one to 3"),
    ):
        mine.write_text(json.dumps(content))
        assert words in refused(capsys, *TRAIN, "--measured", str(mine))


def test_a_training_step_says_time_memory_input_and_the_whole_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = msgspec.convert(asked(capsys, *TRAIN, *RUN), VisionTrainingEstimate)
    assert found.global_batch == 2048
    assert sum(found.breakdown.values()) == pytest.approx(found.step_seconds)
    assert found.interval[0] < found.step_seconds < found.interval[1]
    assert sum(found.memory.terms.values()) == pytest.approx(found.memory.peak_bytes)
    assert found.memory.verdict == "fits"
    assert found.run is not None
    assert found.run.steps == 90 * 625
    assert found.run.run_seconds == pytest.approx(found.run.steps * found.step_seconds)
    assert found.input.decode_cores == pytest.approx(found.images_per_second / 461, rel=0.01)
    # Eight A100 of DeepLearningExamples did 16,621 images/s so, those of Lambda 11,439.
    assert 7_000 < found.images_per_second < 25_000


def test_a_person_reads_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TRAIN, *RUN]) == 0
    out = capsys.readouterr().out
    for words in ("per step", "fits", "images of one device fit", "Kept for the backward pass",
                  "cores to decode", "all-reduce of the gradients", "90 epochs", "device-hours",
                  "80 % interval"):  # fmt: skip
        assert words in out, words


def test_too_many_images_run_out_of_memory_and_the_most_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["predict", "training", "--model", "resnet50", "--device", "V100-SXM2-16GB", "--batch"]
    over = asked(capsys, *words, "1024")["memory"]
    assert over["verdict"] == "oom"
    most = over["largest_batch"]
    assert 200 < most < 400
    assert asked(capsys, *words, str(most))["memory"]["verdict"] == "fits"


def test_few_cores_make_the_step_wait_for_images(capsys: pytest.CaptureFixture[str]) -> None:
    starved = asked(capsys, *TRAIN, "--cores-per-device", "1")
    assert starved["bound"] == "input"
    assert starved["images_per_second_per_gpu"] == pytest.approx(461, rel=0.01)
    assert starved["breakdown"]["input"] > 0


def test_gradients_over_a_slow_network_are_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "training", "--model", "resnet152", "--cluster", "64xA100", "--batch", "16"]
    slow = asked(capsys, *words, "--network", "1")
    assert slow["bound"] == "communication"
    assert slow["scaling_efficiency"] < 0.5
    assert asked(capsys, *words)["scaling_efficiency"] > slow["scaling_efficiency"]


def test_gradients_accumulate_over_smaller_passes(capsys: pytest.CaptureFixture[str]) -> None:
    whole = asked(capsys, *TRAIN)
    parts = asked(capsys, *TRAIN, "--micro-batch", "64")
    assert parts["global_batch"] == whole["global_batch"]
    assert parts["memory"]["peak_bytes"] < 0.5 * whole["memory"]["peak_bytes"]
    assert parts["step_seconds"] == pytest.approx(whole["step_seconds"], rel=0.3)
    assert "does not divide" in refused(capsys, *TRAIN, "--micro-batch", "100")


def test_the_names_of_papers_lead_to_the_same_network(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "training", "--cluster", "8xH100", "--global-batch", "512"]
    paper = asked(capsys, *words, "--model", "ViT-B/16")
    assert paper["model"] == "vit_base_patch16_224"
    assert paper == asked(capsys, *words, "--model", "vit_base_patch16_224")


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*TRAIN, "--tp", "2"], "--tp: resnet50 looks at images"),
        ([*TRAIN, "--seq", "128"], "--image gives the size"),
        ([*TRAIN, "--zero", "3"], "every device holds the whole network"),
        ([*TRAIN, "--software", "megatron"], "--compile or --eager"),
        ([*TRAIN, "--calibrate", "x.json"], "--measured x.json: no such file"),
        ([*TRAIN, "--global-batch", "100"], "leave one of the two out"),
        ([*TRAIN[:-2], "--global-batch", "100"], "nearest that can: 96"),
        (TRAIN[:-2], "--batch"),
        ([*TRAIN, "--device", "A100"], "say the same thing"),
        ([*TRAIN, "--precision", "int8"], "use one of fp32, tf32, bf16, fp16"),
        ([*TRAIN, "--memory-format", "nhwc"], "is not one of 'contiguous', 'channels_last'"),
        ([*TRAIN, "--optimizer", "lamb"], "use sgd or adamw"),
        ([*TRAIN, "--image", "big"], "give pixels"),
        ([*TRAIN, "--images", "0"], "give a number above 0"),
        ([*TRAIN, "--cores-per-device", "-1"], "give a number above 0"),
        ([*TRAIN[:-1], "0"], "give a number of images from 1"),
        (["predict", "training", "--model", "gpt2", "--cluster", "8xA100", "--batch", "3"],
         "--batch: gpt2 is no network for images"),
        (["predict", "training", "--model", "gpt2", "--cluster", "8xA100", "--memory-format",
          "channels_last"], "is no network for images"),
        (["predict", "training", "--model", "gpt2", "--cluster", "8xA100", "--seq", "64"],
         "--global-batch"),
        (["plan", "training", "--model", "gpt2", "--cluster", "8xA100", "--images", "3"],
         "--tokens gives the length"),
        ([*PLAN, "--tokens", "3B"], "--images and --epochs give the length"),
        ([*PLAN, "--write", "recipe.toml"], "by hand"),
        (PLAN[:-4], "--images"),
        (["plan", "training", "--model", "absent.py:net", "--cluster", "8xA100"],
         "Missing option '--images'"),  # before seconds are spent on a network
        ([*PLAN, "--objective", "memory"], "for images use time or cost"),
        ([*PLAN, "--global-batch", "13"], "can share it"),
        ([*INFER[:-1], "V100", "--precision", "int8"], "has no published int8 rate"),
        ([*INFER, "--period", "0"], "give a time above 0"),
        ([*INFER, "--batch", "0"], "give a number of images"),
        (["predict", "inference", "--model", "gpt2", "--device", "T4"],
         "language models: ridgeline predict serving"),
        (["predict", "inference", "--model", "resnet5", "--device", "T4"], "resnet50"),
        (["predict", "training", "--model", "resnet5", "--device", "T4", "--batch", "2"],
         "did you mean, of networks for images, resnet50"),
        ([*INFER, "--threads", "4"], "is no processor"),
        ([*INFER, "--software", "foo"], "not known"),
        (["plan", "inference", "--model", "gpt2", "--rate", "9"], "ridgeline plan serving"),
        (["plan", "inference", "--model", "resnet50"], "say what must be reached"),
        (["plan", "inference", "--model", "resnet152", "--deadline", "0.0001", "--device", "T4"],
         "no device answers resnet152 in time"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *words)


def test_a_call_says_latency_memory_and_what_would_change_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = msgspec.convert(asked(capsys, *INFER, "--batch", "32"), VisionInferenceEstimate)
    assert sum(found.breakdown.values()) == pytest.approx(found.latency_seconds)
    assert found.images_per_second == pytest.approx(32 / found.latency_seconds)
    assert found.changes
    assert found.changes == sorted(found.changes, key=lambda one: one.latency_seconds)
    changes = {one.change for one in found.changes}
    assert any(one.endswith(" int8") for one in changes)
    assert not {"int8", "compile int8"} & changes  # PyTorch has no such convolution on a GPU
    assert run([*INFER, "--batch", "32"]) == 0
    assert "What would change it" in capsys.readouterr().out


def test_a_period_is_met_missed_or_uncertain(capsys: pytest.CaptureFixture[str]) -> None:
    free = asked(capsys, *INFER)
    low, high = free["interval"]
    for period, met in ((2 * high, "yes"), (low / 2, "no"), ((low + high) / 2, "uncertain")):
        found = asked(capsys, *INFER, "--period", f"{period:.9f}")["deadline"]
        assert found["met"] == met
        assert found["margin_seconds"] == pytest.approx(period - free["latency_seconds"], abs=1e-8)


def test_a_small_network_on_a_large_device_is_launch_bound_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["predict", "inference", "--model", "mobilenetv2_100", "--device", "H100"]
    eager = asked(capsys, *words)
    assert eager["bound"] == "launches"
    assert "launch-bound" in eager["notes"][0]
    assert asked(capsys, *words, "--batch", "1024")["bound"] != "launches"
    assert asked(capsys, *words, "--batch", "1024")["notes"] == []


def test_a_plan_ranks_clusters_by_time_or_by_cost(capsys: pytest.CaptureFixture[str]) -> None:
    fastest = msgspec.convert(asked(capsys, *PLAN), VisionTrainingPlan)
    assert fastest.best.cluster.startswith("64x")
    assert fastest.best.global_batch <= 8192
    assert [one.times_slower for one in fastest.clusters] == sorted(
        one.times_slower for one in fastest.clusters
    )
    assert len(fastest.clusters) == 3
    assert {one.knob for one in fastest.knobs} >= {"batch", "memory_format"}
    cheapest = msgspec.convert(asked(capsys, *PLAN, "--objective", "cost"), VisionTrainingPlan)
    costs = [one.times_dearer or 0.0 for one in cheapest.clusters]
    assert costs[0] == 1.0
    assert costs == sorted(costs)
    held = asked(capsys, *PLAN, "--global-batch", "1024")
    assert {one["estimate"]["global_batch"] for one in held["clusters"]} == {1024}


@pytest.mark.slow
def test_a_deployment_has_a_device_a_runtime_and_a_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "inference", "--model", "resnet50", "--rate", "20k", "--deadline", "33ms"]
    found = msgspec.convert(asked(capsys, *words), VisionInferencePlan)
    for one in found.options:
        assert one.response_seconds <= 0.033
        assert one.num_devices * one.images_per_second >= 20_000
        assert (one.num_devices - 1) * one.images_per_second < 20_000
    prices = [one.usd_per_hour for one in found.options if one.usd_per_hour is not None]
    assert prices
    assert prices == sorted(prices)
    only = asked(capsys, *words, "--device", "T4", "--precision", "fp16", "--batch", "8")
    assert {(one["device"], one["batch"]) for one in only["options"]} == {("T4", 8)}


PAGES = {
    "predict training": [*TRAIN, *RUN],
    "predict inference": INFER,
    "plan training": PLAN,
    "plan inference": ["plan", "inference", "--model", "resnet50", "--rate", "20k"],
}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("words", PAGES.values(), ids=PAGES)
def test_a_page_stands_alone(words: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run([*words, "--html", str(page)]) == 0
    text = page.read_text()
    assert "resnet50" in text
    assert "<script src" not in text


@pytest.mark.sweep(every=24)
@pytest.mark.parametrize("device", [one.name for one in devices()])
def test_every_device_answers_in_finite_numbers_or_in_one_line(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["predict", "training", "--model", "vit_base_patch16_224", "--batch", "8"],
                  ["predict", "inference", "--model", "efficientnet_b0"]):  # fmt: skip
        for precision in ("fp32", "fp16", "bf16"):
            code = run([*words, "--device", device, "--precision", precision, "--json"])
            seen = capsys.readouterr()
            if code:
                assert (code, seen.out, seen.err.count("\n")) == (2, "", 1), seen.err
            else:
                assert nulls(json.loads(seen.out, parse_constant=pytest.fail)) <= EMPTY


@pytest.mark.slow
def test_every_network_answers_in_finite_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for name in network_names():
        for words in (["predict", "training", "--batch", "8"], ["predict", "inference"]):
            found = asked(capsys, *words, "--model", name, "--device", "A100")
            assert nulls(found) <= EMPTY, name


def test_the_figures_of_the_tutorial_are_those_that_its_commands_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = PAGE.read_text()
    told = re.findall(
        r"^\| `(--cluster[^`]*)` \| ([\d.]+) (h|min) \|[^|]*\| \$(\d+)", page, re.MULTILINE
    )
    asked_for = commands(page)
    assert [row[0] for row in told] == [options(words) for words in asked_for]
    for words, (_, amount, unit, usd) in zip(asked_for, told, strict=True):
        found = asked(capsys, *words[1:])["run"]
        seconds = float(amount) * (3600 if unit == "h" else 60)
        assert found["run_seconds"] == pytest.approx(seconds, rel=0.04), words
        assert found["usd"] == pytest.approx(float(usd), rel=0.03, abs=0.6), words


def test_a_network_of_the_users_own_script_is_counted_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "nets.py"
    script.write_text(
        "from torch import nn\n"
        "def camera():\n"
        "    return nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),\n"
        "                         nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU())\n"
    )
    for words in (
        ["predict", "inference", "--device", "orin"],
        ["plan", "inference", "--device", "orin", "--deadline", "33ms"],
        ["predict", "training", "--device", "A100", "--batch", "32"],
        ["plan", "training", "--cluster", "8xA100", "--images", "1M", "--global-batch", "256"],
    ):
        given = [*words, "--model", f"{script}:camera", "--image", "128x256", "--json"]
        assert run(given) == 0, words
        assert "camera" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "device", "software"),
    [("yolo11n", "orin", "tensorrt"), ("YOLOv8s-seg", "t4", "onnxruntime"),
     ("yolov5mu", "raspberry-pi-5", "onnxruntime"), ("yolo26n", "i5-5200u", "openvino")],
)  # fmt: skip
def test_detectors_are_predicted_by_name_under_the_runtimes_of_cameras(
    model: str, device: str, software: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "inference", "--model", model, "--device", device, "--software", software]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["image_size"] == [640, 640]
    assert 0.0005 < found["latency_seconds"] < 30


def test_16_bits_are_summed_in_16_where_tensorrt_may(capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(device: str, software: str) -> float:
        words = ["predict", "inference", "--model", "vgg16", "--batch", "64", "--precision", "fp16"]
        assert run([*words, "--device", device, "--software", software, "--json"]) == 0
        return float(json.loads(capsys.readouterr().out)["latency_seconds"])

    # An A10G has the RTX 3080's chip and the same rate whatever the sums; GeForce cards halve it.
    gains = [seconds(one, "eager") / seconds(one, "tensorrt") for one in ("rtx-3080", "a10g")]
    assert gains[0] > 1.2 * gains[1]


def test_a_script_that_names_cuda_is_counted_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "ramp.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first = torch.nn.Conv2d(3, 8, 3).cuda()\n"
        "        self.ramp = torch.arange(8, device='cuda').float()\n"
        "    def forward(self, image):\n"
        "        cost = torch.FloatTensor(8).zero_().cuda() + self.ramp\n"
        "        return self.first(image) * cost[None, :, None, None].to('cuda:0')\n"
    )
    words = ["predict", "inference", "--model", f"{script}:Net", "--device", "orin", "--json"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["latency_seconds"] > 0


def test_what_takes_no_single_image_is_told_of_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "clip.py"
    script.write_text("import torch\ndef net():\n    return torch.nn.Conv3d(3, 4, 3)\n")
    words = ["predict", "inference", "--model", f"{script}:net", "--device", "orin"]
    assert run(words) == 2
    assert "needs a sample of each argument: --inputs FILE.npz" in capsys.readouterr().err
    assert run([*words[:3], "segformer-b0", *words[4:]]) == 2
    assert "timm:NAME, hf:FOLDER or script.py:FUNCTION" in capsys.readouterr().err
