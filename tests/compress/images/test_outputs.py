"""`ridgeline compress` of models that are no classifiers: each output is compared by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ridgeline.cli.main import run
from ridgeline.compress.images.outputs import OutputComparison
from ridgeline.compress.vision.nodes import load_operators
from ridgeline.measure.network.scripted import model_of, run_script

onnxruntime = pytest.importorskip("onnxruntime")

NETWORKS = """
from dataclasses import dataclass
import torch
from torch import nn

def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

class Rig(nn.Module):
    # six-camera networks in small: grid sizes are parameters, poses come with each sample
    def __init__(self):
        super().__init__()
        self.nx = nn.Parameter(torch.tensor([4, 6]), requires_grad=False)
        self.register_buffer("cell", torch.tensor([0.5, 0.5]))
        self.encode = nn.Sequential(conv(3, 16, 2), conv(16, 16, 2))
        self.head = nn.Conv2d(16, 2, 1)
    def forward(self, imgs, offsets):
        b, n, c, h, w = imgs.shape
        x, y = int(self.nx[0]), self.nx[1].item()
        f = self.encode(imgs.view(b * n, c, h, w)).view(b, n, 16, -1).permute(0, 1, 3, 2)
        places = torch.arange(f.shape[2]).view(1, 1, -1) % x + offsets.long().unsqueeze(-1) % y * x
        flat = (places % (x * y)).flatten(1).unsqueeze(-1).expand(-1, -1, 16)
        grid = torch.zeros(b, self.nx[0] * self.nx[1], 16).scatter_add(1, flat, f.flatten(1, 2))
        return {"bev": self.head(grid.view(b, y, x, 16).permute(0, 3, 1, 2))}

class RigOfOneDict(Rig):
    def forward(self, batch):
        return super().forward(batch["imgs"], batch["offsets"])

@dataclass
class Found:
    logits: torch.Tensor
    boxes: torch.Tensor
    aux: list

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 2), conv(16, 24, 2))
        layer = nn.TransformerEncoderLayer(24, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.scores, self.boxes = nn.Linear(24, 5), nn.Linear(24, 4)
        self.places = nn.Parameter(torch.zeros(64, 24))
        self.placed = nn.LayerNorm(24)
    def forward(self, images):
        std = torch.as_tensor([1.0, 1.0, 1.0], dtype=images.dtype, device=images.device)
        if (std == 0).any():  # as torchvision's normalize asks
            raise ValueError("std is zero")
        found = self.body(images / std.view(-1, 1, 1)).flatten(2).transpose(1, 2)
        f = self.encoder(found + self.placed(self.places[None])[:, : found.shape[1]])
        return Found(self.scores(f), self.boxes(f).sigmoid() * 640, [{"tokens": f}])

class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(3, 16), conv(16, 16), conv(16, 16))
        self.head = nn.Conv2d(16, 4, 1)
    def forward(self, images):
        return self.head(self.body(images))

class OneImage(Segments):
    def forward(self, images):
        assert images.shape[0] == 1, "one image at a time"
        return super().forward(images).squeeze(0)[None]

class Suppresses(Segments):
    def forward(self, images):
        maps = super().forward(images)
        return maps[maps > 0]

class TimeFirst(Segments):
    def forward(self, images):
        return super().forward(images).flatten(1)[:, :40].T

class Tracker(nn.Module):
    # a template against what is searched, each pair of a batch in a group of its own
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(3, 32, 2), conv(32, 32, 2), nn.Conv2d(32, 32, 1))
    def forward(self, template, search):
        z, x = self.body(template), self.body(search)
        n, c, h, w = x.shape
        z = nn.functional.avg_pool2d(z, 2)
        out = nn.functional.conv2d(x.reshape(-1, len(z) * c, h, w), z, groups=len(z))
        return {"score": out.view(n, -1, out.shape[-2], out.shape[-1]) * 0.01}

def seen(model):
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
    return model(images).sigmoid().mean()

def lost(model):
    found = model(torch.zeros(2, 3, 32, 32))
    return len(found.aux) + found.boxes.shape[-1] + 0.5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`nets.py`, `images.npy` and `rig.npz`: smooth inputs, as images are."""
    found = tmp_path_factory.mktemp("outputs")
    (found / "nets.py").write_text(NETWORKS)
    generator = torch.Generator().manual_seed(0)

    def smooth(*shape: int) -> Tensor:
        small = torch.randn(int(np.prod(shape)), 3, 4, 4, generator=generator)
        return nn.functional.interpolate(small, (32, 32), mode="bilinear").view(*shape, 3, 32, 32)

    np.save(found / "images.npy", smooth(32).numpy())
    offsets = torch.randint(0, 6, (32, 2), generator=generator)
    rig = {"offsets": offsets, "imgs": smooth(32, 2)}
    np.savez(found / "rig.npz", **{name: one.numpy() for name, one in rig.items()})
    torch.save(rig, found / "rig.pt")
    np.savez(found / "pairs.npz", template=smooth(32).numpy(), search=smooth(32).numpy())
    torch.manual_seed(1)
    for name in ("Detector", "Segments"):
        module = model_of(run_script(found / "nets.py"), name)
        torch.save({"model": module.state_dict()}, found / f"{name}.pt")
    return found


def compress(folder: Path, name: str, out: Path, *words: str, data: str = "images.npy") -> int:
    scheme = [] if "--scheme" in words else ["--scheme", "w8a8-int8-rtn"]
    given = ["--calibration", str(folder / data), "--images", str(folder / data), "--no-speed"]
    model = f"{folder / 'nets.py'}:{name}"
    return run(["compress", model, *scheme, *given, "--out", str(out), *words])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["50%-channels", "w8a8-int8"])
def test_a_tracker_whose_groups_follow_from_the_batch_is_saved_for_one_pair(
    scheme: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What torch.export learns of two pairs does not hold for one, which is what a camera gives."""
    out = tmp_path / "out"
    assert compress(folder, "Tracker", out, "--scheme", scheme, data="pairs.npz") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "takes one image at a time" in said
    assert "groups=len(z))` makes a number of the batch" in said
    assert rows(out)[-1]["outputs"][0]["sqnr_db"] > (20 if scheme == "w8a8-int8" else 0)
    pair = [torch.from_numpy(one[:1]) for one in np.load(folder / "pairs.npz").values()]
    load_operators()
    score = torch.export.load(out / "model.pt2").module()(*pair)
    assert score.shape[0] == 1
    if scheme == "w8a8-int8":
        session = onnxruntime.InferenceSession(out / "model.onnx")
        assert [one.shape[0] for one in session.get_inputs()] == [1, 1]


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "ledger.json").read_text())["rows"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Rig", "RigOfOneDict"])
def test_cameras_with_poses_and_grid_sizes_in_parameters_become_onnx_with_their_names(
    name: str, folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    module = model_of(run_script(folder / "nets.py"), "Rig").eval().requires_grad_(False)
    weights = tmp_path / "weights.pt"
    torch.save(module.state_dict(), weights)
    out = tmp_path / "out"
    words = ["--checkpoint", str(weights), "--images", str(folder / "rig.pt")]
    assert compress(folder, name, out, *words, data="rig.npz") == 0
    (found,) = rows(out)[1]["outputs"]
    assert (found["name"], found["shape"]) == ("bev", [2, 6, 4])
    assert found["sqnr_db"] > 20
    assert found["agreement"]["of"] == 32 * 6 * 4
    session = onnxruntime.InferenceSession(str(out / "model.onnx"))
    assert [one.name for one in session.get_outputs()] == ["bev"]
    rig = dict(np.load(folder / "rig.npz"))
    given = {one.name: rig[one.name][:3] for one in session.get_inputs()}
    assert set(given) == {"imgs", "offsets"}
    (made,) = session.run(None, given)
    with torch.no_grad():
        wanted = module(*(torch.from_numpy(given[name]) for name in ("imgs", "offsets")))["bev"]
    noise = float((wanted - torch.from_numpy(made)).square().sum() / wanted.square().sum())
    assert noise < 0.01


@pytest.mark.slow
def test_each_output_has_a_row_and_the_worst_one_decides(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--checkpoint", str(folder / "Detector.pt")]
    metric = ["--metric", f"{folder / 'nets.py'}:lost"]
    out = tmp_path / "out"
    assert compress(folder, "Detector", out, *weights, *metric, "--max-loss", "metric-0") == 0
    first, last = rows(out)
    assert first["metric"] == last["metric"] == 5.5
    names = [one["name"] for one in last["outputs"]]
    assert names == ["logits", "boxes", "aux.0.tokens"]
    worst = min(last["outputs"], key=lambda one: one["sqnr_db"])
    for one in last["outputs"]:
        assert one["relative_error"] == pytest.approx(10 ** (-one["sqnr_db"] / 20), rel=1e-6)
    capsys.readouterr()
    evaluate = ["evaluate", str(out), "--images", str(folder / "images.npy"), *metric, "--json"]
    against = ["--against", f"{folder / 'nets.py'}:Detector", *weights]
    assert run([*evaluate, *against]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["row"]["outputs"] == last["outputs"]
    assert (again["row"]["metric"], again["against_row"]["metric"]) == (5.5, 5.5)
    bound = f"sqnr-{worst['sqnr_db'] + 1:.2f}dB"
    assert compress(folder, "Detector", tmp_path / "no", *weights, "--max-loss", bound) == 3
    assert f"SQNR of {worst['name']} {worst['sqnr_db']:.1f} dB: more" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_what_gives_no_logits_is_evaluated_beside_another_or_by_a_measure(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{folder / 'nets.py'}:Segments"
    words = ["evaluate", model, "--images", str(folder / "images.npy"), "--json"]
    weights = ["--checkpoint", str(folder / "Segments.pt")]
    assert run([*words, *weights, "--against", model, "--metric", f"{model[:-9]}:seen"]) == 0
    found = json.loads(capsys.readouterr().out)
    (output,) = found["row"]["outputs"]
    assert output["sqnr_db"] < 20, "other weights answer otherwise"
    assert found["row"]["metric"] != found["against_row"]["metric"]
    assert run(words) == 2
    assert "give --against MODEL to compare them with, --boxes FILE, or" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:The given buffer is not writable")  # torch 2.11 itself
def test_channels_of_a_segmentation_go_and_its_own_measure_says_what_that_costs(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--scheme", "50%-channels", "--metric", f"{folder / 'nets.py'}:seen"]
    assert compress(folder, "Segments", out, *words) == 0
    first, last = rows(out)
    assert last["parameters"] < 0.6 * first["parameters"]
    assert last["outputs"][0]["agreement"]["of"] == 32 * 32 * 32
    smaller = torch.export.load(out / "model.pt2").module()
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
    assert last["metric"] == pytest.approx(
        float(smaller(images).detach().sigmoid().mean()), rel=1e-4
    )


@pytest.mark.slow
def test_a_model_of_one_image_at_a_time_is_quantised(folder: Path, tmp_path: Path) -> None:
    assert compress(folder, "OneImage", tmp_path / "out") == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    assert session.get_inputs()[0].shape == [1, 3, 32, 32]
    assert rows(tmp_path / "out")[1]["outputs"][0]["sqnr_db"] > 20


@pytest.mark.slow
def test_a_directory_of_transformers_that_segments_is_quantised(
    folder: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 16], num_attention_heads=[1, 2],
        sr_ratios=[4, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(config)
    model.save_pretrained(tmp_path / "model")
    images = str(folder / "images.npy")
    words = ["--scheme", "w8a8-int8-rtn", "--calibration", images, "--no-speed", "--images", images]
    out = tmp_path / "out"
    assert run(["compress", str(tmp_path / "model"), *words, "--out", str(out)]) == 0
    (found,) = rows(out)[1]["outputs"]
    assert (found["name"], found["shape"]) == ("logits", [3, 8, 8])
    assert found["sqnr_db"] > 10


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("Suppresses", [], "an output needs a row for each image"),
        ("TimeFirst", [], "counts them, return it with .transpose(0, 1)"),
        ("Segments", ["--max-loss", "kl+0.1"], "limit agreement, sqnr or metric"),
        ("Segments", ["--max-loss", "metric-1"], "give --metric FILE.py:NAME too"),
        ("Segments", ["--metric", "nets.py"], "give metric.py:NAME"),
        ("Segments", ["--metric", "FOLDER/nets.py:none"], "defines no function 'none'"),
        ("Segments", ["--metric", "FOLDER/nets.py:lost"], "fails with"),
        ("Segments", ["--images", "FOLDER/rig.pt"], "forward has no argument"),
        ("Segments", ["--images", "FOLDER/Segments.pt"], "holds no tensor, and no dict or tuple"),
        ("Segments", ["--checkpoint", "FOLDER/Detector.pt"], "does not fit"),
        ("Segments", ["--scheme", "50%-channels-taylor"], "has no labels, which taylor needs"),
    ],
)
def test_what_cannot_be_is_one_line(
    name: str,
    words: list[str],
    said: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [one.replace("FOLDER", str(folder)) for one in words]
    assert compress(folder, name, tmp_path / "out", *words) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_masked_scores_that_are_infinite_in_both_models_are_no_noise() -> None:
    exact = torch.tensor([[1.0, -torch.inf], [2.0, 3.0]])
    other = torch.tensor([[1.1, -torch.inf], [2.0, 3.0]])
    comparison = OutputComparison()
    comparison.add(exact, other)
    (found,) = comparison.found(["scores"])
    assert found.relative_error == pytest.approx(0.1 / 14**0.5, rel=1e-5)
    comparison.add(exact, exact.clone().fill_(torch.inf))
    assert comparison.found(["scores"])[0].relative_error is None
