"""`--boxes`: the mAP of a detector, by COCO's own evaluation, in the pixels of the pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from ridgeline.cli.main import run

pytest.importorskip("pycocotools")

NETWORKS = """
import torch
from torch import nn

class Finder(nn.Module):
    # one square, red or green, on black: its edges by where a row or column first shines
    shift, nothing = 0.0, False
    def __init__(self):
        super().__init__()
        self.colours = nn.Conv2d(3, 2, 1, bias=False)
        self.colours.weight.data = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]])[:, :, None, None]
    def forward(self, images):
        found = self.colours(images)  # [n, 2, h, w]
        shines = found.amax(1) > 0.5
        logits = 20 * found.amax((2, 3))[:, None] - 10
        edges = [self.ends(shines.any(axis).float()) for axis in (1, 2)]
        (left, right), (top, bottom) = edges
        left, right = left + self.shift, right + self.shift
        boxes = torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], 1)
        if self.nothing:
            logits = torch.cat([logits, torch.full_like(logits[..., :1], -10.0)], -1)
        return {"logits": logits, "pred_boxes": boxes[:, None]}
    def ends(self, line):
        n = line.shape[1]
        return line.argmax(1) / n, 1 - line.flip(1).argmax(1) / n

class Background(Finder):
    nothing = True

class Shifted(Finder):
    shift = 9 / 160

class Named(Finder):
    def forward(self, images):
        return {"scores": super().forward(images)["logits"]}

class Classes(Finder):
    def forward(self, images):
        return self.colours(images).mean((2, 3))
"""
FLAGS = ("--resize", "96x80", "--mean", "0,0,0", "--std", "1,1,1", "--interpolation", "nearest")
"""Pictures of 160 × 96, seen at 80 × 96: half as wide, as high."""


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`nets.py`, `photos/`, and `boxes.json` in COCO's form with numbers that are not in a row."""
    folder = tmp_path_factory.mktemp("squares")
    (folder / "nets.py").write_text(NETWORKS)
    (folder / "photos").mkdir()
    draw = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(12):
        pixels = np.zeros((96, 160, 3), np.uint8)
        left, top = 2 * int(draw.integers(0, 50)), int(draw.integers(0, 50))
        pixels[top : top + 40, left : left + 40, number % 2] = 255
        Image.fromarray(pixels).save(folder / "photos" / f"{number:02d}.png")
        images.append(
            {"id": number + 100, "file_name": f"{number:02d}.png", "width": 160, "height": 96}
        )
        sort = (3, 7)[number % 2]
        annotations.append(
            {
                "id": number,
                "image_id": number + 100,
                "category_id": sort,
                "bbox": [left, top, 40, 40],
                "area": 1600,
                "iscrowd": 0,
            }
        )
    categories = [{"id": 3, "name": "red"}, {"id": 7, "name": "green"}]
    written = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(written))
    return folder


def evaluate(folder: Path, name: str, *words: str) -> int:
    model, images = f"{folder / 'nets.py'}:{name}", str(folder / "photos")
    boxes = [] if "--boxes" in words else ["--boxes", str(folder / "boxes.json")]
    flags = [] if "--resize" in words else FLAGS
    return run(["evaluate", model, "--images", images, *boxes, *flags, *words])


def precision_of(capsys: pytest.CaptureFixture[str]) -> float:
    row: dict[str, Any] = json.loads(capsys.readouterr().out)["row"]
    return float(row["mean_average_precision"])


@pytest.mark.parametrize("name", ["Finder", pytest.param("Background", marks=pytest.mark.slow)])
def test_a_detector_that_finds_every_square_has_a_map_of_one_in_pictures_of_another_shape(
    squares: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert evaluate(squares, name, "--json") == 0
    assert precision_of(capsys) == pytest.approx(1.0)


def test_boxes_nine_of_forty_pixels_aside_hold_at_three_of_ten_thresholds(
    squares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 31 of 49 pixels of the union are common, 0.633: 0.50, 0.55 and 0.60 are met, of ten
    assert evaluate(squares, "Shifted", "--json") == 0
    assert precision_of(capsys) == pytest.approx(0.3)


def test_what_a_crop_cuts_off_is_missed(squares: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--resize", "96", "--crop", "96", *FLAGS[2:])
    assert evaluate(squares, "Finder", *words, "--json") == 0
    assert 0.1 < precision_of(capsys) < 0.9


DIGITS = """
import torch
from pathlib import Path
from torch import nn

class Digits(nn.Module):
    # ten digits in a grid of 4 x 4 cells: what each cell shows, and the box of its ink
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 12, 3, padding=1)
        self.answers = nn.Conv2d(12, 14, 8, stride=8)
        self.load_state_dict(torch.load(Path(__file__).parent / "learnt.pt"))
        cells = torch.arange(16)
        corners = torch.stack([cells % 4, cells // 4, 0 * cells, 0 * cells], 1)
        self.register_buffer("cells", corners / 4)
    def forward(self, images):
        found = self.answers(self.features(images).relu()).flatten(2).transpose(1, 2)
        return {"logits": found[..., :10], "pred_boxes": found[..., 10:] + self.cells}
"""
SIDE = 32
"""Pixels of a picture of 4 × 4 cells, as many as a digit of scikit-learn's has."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`net.py` with weights solved for, `photos/` of digits that it has not seen, `boxes.json`."""
    folder = tmp_path_factory.mktemp("pages")
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    draw = np.random.default_rng(0)
    rows = [_page(digits.images[:1200], digits.target[:1200], draw) for _ in range(80)]
    pictures = torch.stack([_pixels(page) for page, _ in rows])
    torch.manual_seed(0)
    features = torch.nn.Conv2d(3, 12, 3, padding=1)
    with torch.no_grad():
        seen = functional.unfold(features(pictures).relu(), 8, stride=8).transpose(1, 2)
    seen = torch.cat([seen.flatten(0, 1), torch.ones(80 * 16, 1)], 1)
    wanted = torch.tensor(np.concatenate([_answers(found) for _, found in rows])).float()
    ridge = seen.T @ seen + 3.0 * torch.eye(seen.shape[1])
    solved = torch.linalg.solve(ridge, seen.T @ wanted).T
    answers = {"weight": solved[:, :-1].reshape(14, 12, 8, 8), "bias": solved[:, -1]}
    learnt = {f"features.{name}": one for name, one in features.state_dict().items()}
    torch.save(
        learnt | {f"answers.{name}": one for name, one in answers.items()}, folder / "learnt.pt"
    )
    (folder / "net.py").write_text(DIGITS)
    (folder / "photos").mkdir()
    images, annotations = [], []
    for number in range(12):
        page, found = _page(digits.images[1200:], digits.target[1200:], draw)
        Image.fromarray(page).convert("RGB").save(folder / "photos" / f"{number:02d}.png")
        images.append(
            {"id": number, "file_name": f"{number:02d}.png", "width": SIDE, "height": SIDE}
        )
        for digit, (left, top, width, height), _ in found:
            box = {"bbox": [left, top, width, height], "area": width * height, "iscrowd": 0}
            one = {"id": len(annotations), "image_id": number, "category_id": digit}
            annotations.append(one | box)
    categories = [{"id": one, "name": str(one)} for one in range(10)]
    written = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(written))
    return folder


Found = tuple[int, tuple[int, int, int, int], int]
"""A digit, the box of its ink, and its cell."""


def _page(
    images: np.ndarray, targets: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, list[Found]]:
    """A picture with digits in ten of its cells, uint8, and what stands where."""
    page, found = np.zeros((SIDE, SIDE), np.uint8), list[Found]()
    for cell in draw.permutation(16)[:10]:
        place = int(draw.integers(len(images)))
        top, left = 8 * (cell // 4), 8 * (cell % 4)
        page[top : top + 8, left : left + 8] = images[place] * (255 / 16)
        ys, xs = np.nonzero(images[place] > 4)
        ink = (int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1)
        box = (int(left) + ink[0], int(top) + ink[1], ink[2], ink[3])
        found.append((int(targets[place]), box, int(cell)))
    return page, found


def _pixels(page: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(page / 255).float().expand(3, SIDE, SIDE)


def _answers(found: list[Found]) -> np.ndarray:
    """What the detector is to say of each cell: ten logits, centre and size within the cell."""
    answers = np.concatenate([np.full((16, 10), -4.0), np.full((16, 4), 0.125)], 1)
    for digit, (left, top, width, height), cell in found:
        answers[cell, digit] = 4.0
        x, y = left - 8 * (cell % 4) + width / 2, top - 8 * (cell // 4) + height / 2
        answers[cell, 10:] = np.array([x, y, width, height]) / SIDE
    return answers


@pytest.mark.slow
def test_int8_of_a_detector_that_has_learnt_digits_is_held_to_its_map(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, boxes, out = str(pages / "photos"), str(pages / "boxes.json"), tmp_path / "out"
    words = [
        "compress", f"{pages / 'net.py'}:Digits", "--scheme", "w8a8-int8-rtn", "--calibration",
        photos, "--images", photos, "--boxes", boxes, "--resize", "32x32", *FLAGS[2:], "--no-speed",
        "--max-loss", "map-2%", "--out", str(out),
    ]  # fmt: skip
    assert run(words) == 0
    first, second = json.loads((out / "ledger.json").read_text())["rows"]
    precision = [row["mean_average_precision"] for row in (first, second)]
    assert precision[0] > 0.4
    assert precision[0] != precision[1]
    assert abs(precision[0] - precision[1]) <= 0.02
    assert str(Path(__file__).parents[3]).encode() not in (out / "model.onnx").read_bytes()


@pytest.mark.slow
def test_int8_of_a_detector_is_held_to_its_map(squares: Path, tmp_path: Path) -> None:
    photos, boxes = str(squares / "photos"), str(squares / "boxes.json")
    out = tmp_path / "out"
    words = [
        "compress", f"{squares / 'nets.py'}:Finder", "--scheme", "w8a8-int8-rtn", "--calibration",
        photos, "--images", photos, "--boxes", boxes, *FLAGS, "--max-loss", "map-1%", "--out",
        str(out), "--no-speed",
    ]  # fmt: skip
    assert run(words) == 0
    found = json.loads((out / "ledger.json").read_text())["rows"]
    assert [row["mean_average_precision"] for row in found] == pytest.approx([1.0, 1.0])


def test_the_model_that_it_is_held_against_has_its_own_map(
    squares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--against", f"{squares / 'nets.py'}:Shifted"]
    assert evaluate(squares, "Finder", *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    both = [found[name]["mean_average_precision"] for name in ("row", "against_row")]
    assert both == pytest.approx([1.0, 0.3])
    assert evaluate(squares, "Finder", *words) == 0
    assert " ".join(capsys.readouterr().out.split()).count("mAP at IoU 0.50 to 0.95: ") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"images": []}, "says nothing of"),
        ({"annotations": []}, "has no box in the 12 images that are judged"),
        ({"categories": [{"id": 3, "name": "red"}]}, "names no category 7"),
        ({"images": 7}, "Expected `array`"),
    ],
)
def test_annotations_that_do_not_fit_are_refused_in_one_line(
    squares: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    said: str,
) -> None:
    broken = tmp_path / "boxes.json"
    broken.write_text(json.dumps(json.loads((squares / "boxes.json").read_text()) | change))
    assert evaluate(squares, "Finder", "--boxes", str(broken)) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_a_picture_that_was_resized_since_is_refused(
    squares: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((squares / "boxes.json").read_text())
    found["images"][0]["width"] = 320
    broken = tmp_path / "boxes.json"
    broken.write_text(json.dumps(found))
    assert evaluate(squares, "Finder", "--boxes", str(broken)) == 2
    assert "says 320 × 96 of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [("Named", "one named logits is needed"), ("Classes", "is a classifier; leave it out")],
)
def test_outputs_of_another_form_are_refused_in_one_line(
    squares: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert evaluate(squares, name) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_limit_on_map_without_boxes_is_refused_before_anything_runs(
    squares: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = str(squares / "photos")
    words = ["--scheme", "w8a8-int8-rtn", "--calibration", photos, "--max-loss", "map-1%"]
    model = f"{squares / 'nets.py'}:Finder"
    assert run(["compress", model, *words, *FLAGS, "--out", str(tmp_path / "out")]) == 2
    assert "give --boxes FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_detectors_of_transformers_are_judged_by_the_names_of_their_classes(
    squares: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=[96, 80], patch_size=16, num_detection_tokens=5,
        id2label={0: "green", 1: "red"}, label2id={"green": 0, "red": 1},
    )  # fmt: skip
    YolosForObjectDetection(config).save_pretrained(tmp_path / "yolos")
    words = ["evaluate", str(tmp_path / "yolos"), "--images", str(squares / "photos"), *FLAGS]
    assert run([*words, "--boxes", str(squares / "boxes.json"), "--json"]) == 0
    assert 0 <= precision_of(capsys) < 0.5
    other = json.loads((squares / "boxes.json").read_text())
    other["categories"] = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert run([*words, "--boxes", str(tmp_path / "other.json")]) == 2
    assert "no name is in both" in capsys.readouterr().err
