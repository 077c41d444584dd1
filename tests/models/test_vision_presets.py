"""Presets of vision networks against published sizes and work, at their own size and at others."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.measured_again import PYTHON, count_again

from ridgeline.errors import InputError
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import ALIASES, find_name, load_network, network_names
from ridgeline.models.vision.rows import read_row, write_row

TABLE = Path(__file__).parents[3] / "shared" / "data" / "published_vision.csv.gz"
PUBLISHED = {
    # parameters and billions of multiply-accumulates as torchvision's model pages print them, at
    # the image size there; MobileNet-V1: arXiv 1704.04861, table 8
    "ResNet-18": (11_689_512, 1.81, 224),
    "ResNet-34": (21_797_672, 3.66, 224),
    "ResNet-50": (25_557_032, 4.09, 224),
    "ResNet-101": (44_549_160, 7.80, 224),
    "ResNet-152": (60_192_808, 11.51, 224),
    "EfficientNet-B0": (5_288_548, 0.39, 224),
    "EfficientNet-B1": (7_794_184, 0.69, 240),
    "EfficientNet-B2": (9_109_994, 1.09, 288),
    "EfficientNet-B3": (12_233_232, 1.83, 300),
    "EfficientNet-B4": (19_341_616, 4.39, 380),
    "EfficientNet-B5": (30_389_784, 10.27, 456),
    "EfficientNet-B6": (43_040_704, 19.07, 528),
    "EfficientNet-B7": (66_347_960, 37.75, 600),
    "MobileNet-V1": (4_231_976, 0.57, 224),
    "MobileNet-V2": (3_504_872, 0.30, 224),
    "MobileNet-V3-large": (5_483_032, 0.22, 224),
    "MobileNet-V3-small": (2_542_856, 0.06, 224),
    "vit_base_patch16_224": (86_567_656, 17.56, 224),
    "AlexNet": (61_100_840, 0.71, 224),
    "SqueezeNet1_0": (1_248_424, 0.82, 224),
}
ANOTHER_NETWORK = "ecaresnext50t_32x4d"
"""timm built another network under that name then."""


def as_counted_then(network: VisionNetwork) -> tuple[float, float]:
    """GMACs and millions of activations with what timm's counter then saw, and no more.

    fvcore counts traced operators that it knows: no convolution with padding="same", no fused
    attention where timm left it fused, one product of differential attention where two run. Angles
    of mixed rotary embeddings were outer products by matmul, whose outputs it counts. Ultralytics'
    figures are thop's, which counts modules, and no product of attention.
    """
    macs, wrote = network.published_macs, network.published_activations
    unseen: list[tuple[int, int]] = []
    if "convmixer" in network.name:
        unseen = [
            (one.macs * one.count, one.output_elements * one.count)
            for one in network.operators
            if one.kind == "conv" and one.groups > 1
        ]
    products = [
        (one.macs * one.count, one.output_elements * one.count)
        for one in network.operators
        if one.kind == "product"
    ]
    if "reg8_gap_256" in network.name or "reg4_256" in network.name or "yolo" in network.name:
        unseen = products
    elif "vit_d" in network.name and "reg1_gap" in network.name:
        twice = max(products)
        unseen = [(twice[0] // 2, twice[1] // 2)]
    elif "rope_mixed" in network.name:
        unseen = [
            (0, -one.weight_elements * one.count)
            for one in network.operators
            if one.function == "mul" and not one.input_elements and one.weight_elements > 1
        ][:1]
    macs -= sum(one for one, _ in unseen)
    wrote -= sum(one for _, one in unseen)
    return macs / 1e9, wrote / 1e6


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_work_are_the_published_ones(name: str) -> None:
    parameters, billions, image_size = PUBLISHED[name]
    network = load_network(name, image_size)
    assert network.parameters == parameters
    assert network.macs / 1e9 == pytest.approx(billions, abs=0.0051)


def published_figures() -> dict[tuple[str, int, int], set[tuple[str, str]]]:
    figures: dict[tuple[str, int, int], set[tuple[str, str]]] = defaultdict(set)
    with gzip.open(TABLE, "rt") as file:
        for row in csv.DictReader(file):
            if row["gmacs"] and row["input_hw"].count("x") == 1:
                height, width = map(int, row["input_hw"].split("x"))
                key = row["model"], height, width
                figures[key].add((row["gmacs"], row["activations_m"]))
    return figures


def is_near(ours: float, published: str) -> bool:
    """Within 1 % or within the published figure's rounding."""
    rounding = 0.5 * 10.0 ** -len(published.partition(".")[2])
    return not published or abs(ours - float(published)) <= max(
        0.01 * float(published), 1.001 * rounding
    )


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.exists(), reason="no table of published vision models")
def test_macs_and_activations_are_those_of_the_published_table() -> None:
    unlike, unexplained, pairs = [], [], 0
    for (name, height, width), figures in published_figures().items():
        if find_name(name) is None:
            continue
        network = load_network(name, (height, width))
        pairs += 1
        for counted, kept in (
            ((network.published_macs / 1e9, network.published_activations / 1e6), unlike),
            (as_counted_then(network), unexplained),
        ):
            if not any(
                is_near(counted[0], macs) and is_near(counted[1], wrote) for macs, wrote in figures
            ):
                kept.append(name)
    assert pairs > 1050
    assert len(unlike) <= 0.015 * pairs
    assert unexplained == [ANOTHER_NETWORK]


OTHER_SIZES = {
    # macs and activations counted by bench/vision_presets.py's method on the meta device with
    # timm 1.0.31 at sizes that no preset stores
    "resnet50": 320,
    "efficientnet_b0": 320,
    "mobilenetv3_large_100": 288,
    "convnext_tiny": 352,
    "regnety_016": 256,
    "densenet121": 288,
    "vit_small_patch16_224": 320,
    "deit_tiny_patch16_224": 288,
    "swin_tiny_patch4_window7_224": 672,
    "pvt_v2_b1": 320,
    "mobilevit_s": 320,
    "vgg16": 256,
}


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RIDGELINE_VISION_PYTHON names no interpreter with timm")
@pytest.mark.parametrize(("name", "size"), OTHER_SIZES.items())
def test_another_size_is_what_counting_there_gives(name: str, size: int) -> None:
    again = count_again(f"timm:{name}", size)
    network = load_network(name, size)
    assert network.macs == pytest.approx(again["macs"], rel=0.01)
    assert network.activations == pytest.approx(again["activations"], rel=0.01)
    assert network.parameters == pytest.approx(again["parameters"], rel=0.001)


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RIDGELINE_VISION_PYTHON names no interpreter with timm")
@pytest.mark.parametrize(
    "name", ["resnet50", "vit_small_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_a_preset_is_what_its_library_builds(name: str) -> None:
    again = count_again(f"timm:{name}", None)
    network = load_network(name)
    assert network.macs == again["macs"]
    assert network.activations == again["activations"]
    assert network.parameters == again["parameters"]


def work(network: VisionNetwork, kind: str) -> int:
    return sum(one.macs * one.count for one in network.operators if one.kind == kind)


def test_work_grows_with_the_image_and_parameters_do_not() -> None:
    small, large = load_network("ResNet-50", 224), load_network("ResNet-50", 672)
    assert small.parameters == large.parameters
    assert work(large, "conv") == 9 * work(small, "conv")
    assert work(large, "linear") == work(small, "linear")


def test_attention_grows_with_the_square_of_the_tokens() -> None:
    small, large = load_network("vit_small_patch16_224"), load_network("vit_small_patch16_224", 672)
    tokens = 14 * 14 + 1, 42 * 42 + 1
    assert work(small, "product") == 12 * 2 * 384 * tokens[0] ** 2
    assert work(large, "product") == 12 * 2 * 384 * tokens[1] ** 2


def test_planes_round_up_as_strides_do() -> None:
    network = load_network("resnet50", (250, 333))
    sizes = {one.out_size for one in network.operators if one.kind == "conv"}
    assert sizes == {(125, 167), (63, 84), (32, 42), (16, 21), (8, 11)}


def test_every_alias_leads_to_a_preset() -> None:
    with ALIASES.open() as file:
        presets = [row["preset"] for row in csv.DictReader(file)]
    assert presets
    assert set(presets) <= set(network_names())


def test_a_row_reads_as_it_was_written_at_both_sizes() -> None:
    for name in ("resnet50", "vit_small_patch16_224", "efficientnet_b0"):
        small, large = load_network(name), load_network(name, 448)
        ratio = large.image_size[0] / small.image_size[0]
        for one, other in zip(small.operators, large.operators, strict=True):
            assert read_row(write_row(one, other, ratio), ratio) == (one, other)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ResNet-50", "resnet50"),
        ("timm:resnet50.a1_in1k", "resnet50"),
        ("timm/vit_small_patch16_224.augreg_in21k", "vit_small_patch16_224"),
        ("mobilenet_v2", "mobilenetv2_100"),
        ("MobileNet V3 large", "mobilenetv3_large_100"),
    ],
)
def test_spellings_lead_to_one_network(spelling: str, name: str) -> None:
    assert find_name(spelling) == name
    assert load_network(spelling).name == name


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("resnet51", None, "unknown vision model 'resnet51'; did you mean resnet5"),
        ("resnet50", 16, "resnet50: an image of 16x16; it must be 32 or more each way"),
        ("vit_medium_patch16_reg4_256", 320, "takes images of 256x256 alone"),
    ],
)
def test_a_network_that_cannot_be_is_refused(name: str, size: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_network(name, size)


def test_every_preset_loads_and_counts() -> None:
    names = network_names()
    assert len(names) > 1400
    for name in names[::25]:
        network = load_network(name)
        assert network.macs > 0, name
        assert network.activations > 0, name
        assert network.parameters > 0, name


def test_a_preset_is_loaded_without_torch_in_a_fresh_process() -> None:
    code = (
        "import sys; from ridgeline.models.vision.presets import load_network;"
        " load_network('resnet50'); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"
