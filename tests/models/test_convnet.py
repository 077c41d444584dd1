"""Operator lists of convolutional networks against their published sizes and work."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.models import load_convnet
from ridgeline.models.convnets import networks

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
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_work_are_the_published_ones(name: str) -> None:
    parameters, billions, image_size = PUBLISHED[name]
    net = load_convnet(name, image_size)
    assert net.parameters == parameters
    assert net.macs / 1e9 == pytest.approx(billions, abs=0.0051)


def test_every_network_has_a_published_size_in_this_file() -> None:
    assert PUBLISHED.keys() == networks().keys()


@pytest.mark.parametrize(
    ("name", "kind", "layers"),
    [("ResNet-18", "basic", [2, 2, 2, 2]), ("ResNet-50", "bottleneck", [3, 4, 6, 3])],
)
def test_convolutions_have_the_shapes_that_transformers_builds(
    name: str, kind: str, layers: list[int]
) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sizes = [64, 128, 256, 512] if kind == "basic" else [256, 512, 1024, 2048]
    config = transformers.ResNetConfig(
        layer_type=kind, depths=layers, hidden_sizes=sizes, num_labels=1000
    )
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(config)
    theirs: list[Any] = sorted(
        (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0])
        for m in model.modules()
        if isinstance(m, torch.nn.Conv2d)
    )
    ours = sorted(
        (one.in_channels, one.out_channels, one.kernel, one.stride)
        for one in load_convnet(name).operators
        if one.kind == "conv"
    )
    assert ours == theirs


def test_work_grows_with_the_image_and_parameters_do_not() -> None:
    small, large = load_convnet("ResNet-50", 224), load_convnet("ResNet-50", 448)
    assert small.parameters == large.parameters
    head = small.operators[-1].macs
    assert large.macs - head == 4 * (small.macs - head)


@given(st.sampled_from(sorted(networks())), st.integers(32, 400))
def test_what_one_operator_writes_is_what_some_later_one_reads(name: str, size: int) -> None:
    net = load_convnet(name, size)
    seen = {(3, size)}
    for operator in net.operators:
        assert (operator.in_channels, operator.in_size) in seen
        assert operator.out_size == -(-operator.in_size // operator.stride)
        assert operator.output_elements == operator.out_channels * operator.out_size**2
        seen.add((operator.out_channels, operator.out_size))
    assert net.operators[-1].out_channels == 1000
    assert net.operators[-1].out_size == 1


def test_operators_have_names_of_their_own() -> None:
    for name in networks():
        names = sorted(one.name for one in load_convnet(name).operators)
        assert all(first != second for first, second in pairwise(names)), name


def test_a_depthwise_convolution_has_one_filter_per_channel() -> None:
    net = load_convnet("MobileNet-V1")
    depthwise = next(one for one in net.operators if one.name == "pair1.depthwise")
    assert (depthwise.groups, depthwise.parameters) == (32, 32 * 9)
    assert depthwise.macs == 32 * 9 * 112**2


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("resnet51", None, "unknown network 'resnet51'; did you mean ResNet-50"),
        ("resnet50", 16, "ResNet-50: image size 16; it must be 32 or more"),
        ("resnet50", -1, "image size -1; it must be 32 or more"),
    ],
)
def test_a_network_that_cannot_be_is_refused(name: str, size: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_convnet(name, size)
