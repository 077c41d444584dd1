"""Activations kept for the backward pass, against what PyTorch's autograd really keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.cost.vision.kept_activations import Numerics, kept_activations, statistics_bytes
from ridgeline.cost.vision.memory import inference_memory, training_memory
from ridgeline.measure.network.count import count_module
from ridgeline.models.vision.presets import load_network

BATCH, PIXELS = 2, 64


class Squeeze(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """Blocks as EfficientNet has them: depthwise, SiLU, squeeze and excitation, a shortcut."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.SiLU())
        self.expand = nn.Sequential(nn.Conv2d(width, 96, 1), nn.BatchNorm2d(96), nn.SiLU())
        self.depth = nn.Sequential(
            nn.Conv2d(96, 96, 3, 1, 1, groups=96), nn.BatchNorm2d(96), nn.SiLU()
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(96, 8, 1), nn.SiLU(), nn.Conv2d(8, 96, 1),
            nn.Sigmoid(),
        )  # fmt: skip
        self.project = nn.Sequential(nn.Conv2d(96, width, 1), nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Two rounds through one block."""
        flow = self.stem(images)
        for _ in range(2):
            inner = self.depth(self.expand(flow))
            flow = flow + self.project(inner * self.gate(inner))
        scores: torch.Tensor = self.head(flow.mean((2, 3)))
        return scores


class Branches(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """An Inception-like stem: three convolutions read one tensor, which is kept once."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.arms = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 48, size, padding=size // 2), nn.BatchNorm2d(48), nn.ReLU())
            for size in (1, 3, 5)
        )
        self.head = nn.Linear(144, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Arms side by side, then their mean over the plane."""
        flow = self.stem(images)
        joined = torch.cat([arm(flow) for arm in self.arms], 1)
        scores: torch.Tensor = self.head(joined.mean((2, 3)))
        return scores


class Logits(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """A model of transformers as one from images to scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of every class."""
        scores: torch.Tensor = self.model(images).logits
        return scores


def built(name: str, **config: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, f"{name}Config")(**config)
    return Logits(getattr(transformers, f"{name}ForImageClassification")(made))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "squeeze": Squeeze,
    "branches": Branches,
    "resnet50": lambda: built("ResNet"),
    "mobilenet_v2": lambda: built("MobileNetV2"),
    "convnext": lambda: built("ConvNext"),
    "regnet": lambda: built("RegNet"),
    "swin": lambda: built("Swin", image_size=PIXELS, window_size=2, drop_path_rate=0.0),
    "vit": lambda: built("ViT", image_size=PIXELS, num_hidden_layers=3),
}
AUTOCAST_ON_A_PROCESSOR = ("squeeze", "branches", "resnet50", "mobilenet_v2")
"""Without layer norms, which autocast to 32 bits on GPUs and to 16 on processors."""


def saved_bytes(module: nn.Module, images: torch.Tensor, *, mixed: bool) -> int:
    """Bytes of all tensors that autograd saves; weights and their 16-bit copies left out."""
    own = {one.untyped_storage()._cdata for one in (*module.parameters(), *module.buffers())}
    shapes = {one.shape for one in module.parameters()}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        cast = mixed and tensor.shape in shapes and tensor.dtype == torch.bfloat16
        if storage not in own and not cast:
            seen[storage] = tensor
        return tensor

    module.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if mixed:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                module(images)
        else:
            module(images)
    return sum(one.untyped_storage().nbytes() for one in seen.values())


def predicted_bytes(module: nn.Module, numerics: Numerics, *, compiled: bool = False) -> int:
    network = count_module(module, (PIXELS, PIXELS))
    kept = sum(one.image_bytes for one in kept_activations(network, numerics, compiled=compiled))
    per_image, batch = statistics_bytes(network)
    return BATCH * (kept + per_image) + batch


@pytest.mark.sweep("resnet50")
@pytest.mark.parametrize("name", NETWORKS)
def test_kept_activations_are_those_that_autograd_saves(name: str) -> None:
    with torch.device("meta"):
        module = NETWORKS[name]()
        saved = saved_bytes(module, torch.empty(BATCH, 3, PIXELS, PIXELS), mixed=False)
    assert saved > 1e6
    assert predicted_bytes(module, "fp32") == pytest.approx(saved, rel=0.13)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", AUTOCAST_ON_A_PROCESSOR)
def test_autocast_keeps_sixteen_bits(name: str) -> None:
    module = NETWORKS[name]()
    saved = saved_bytes(module, torch.zeros(BATCH, 3, PIXELS, PIXELS), mixed=True)
    assert predicted_bytes(module, "amp") == pytest.approx(saved, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeeze", "resnet50", "mobilenet_v2", "convnext", "vit"])
def test_the_partitioner_of_compile_keeps_as_much(name: str) -> None:
    """The min-cut partitioner of torch.compile, without the code that inductor would make."""
    module = NETWORKS[name]()
    compiled = torch.compile(module, backend="aot_eager_decomp_partition")
    own = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    module.train()
    images = torch.zeros(BATCH, 3, PIXELS, PIXELS)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = compiled(images)
    assert out.requires_grad
    predicted = predicted_bytes(module, "fp32", compiled=True)
    assert predicted == pytest.approx(sum(seen.values()), rel=0.12)


def test_layer_norms_keep_thirty_two_bits_under_autocast() -> None:
    network = load_network("vit_base_patch16_224")
    kept = kept_activations(network, "amp")
    assert {one.element_bytes for one in kept if one.name.endswith("norm1")} == {4}
    assert {one.element_bytes for one in kept if one.name.endswith("fc2")} == {2}


def test_compilation_computes_silu_and_its_norm_again() -> None:
    network = load_network("efficientnet_b0")
    eager, fused = (
        sum(one.image_bytes for one in kept_activations(network, "amp", compiled=compiled))
        for compiled in (False, True)
    )
    assert 0.55 < fused / eager < 0.8
    resnet = load_network("resnet50")
    before, after = (
        sum(one.image_bytes for one in kept_activations(resnet, "amp", compiled=compiled))
        for compiled in (False, True)
    )
    assert 0.9 < after / before < 1.0  # what relu wrote is read by the next convolution anyway


def test_the_largest_batch_is_the_last_that_fits() -> None:
    need = training_memory(load_network("resnet50"), "amp", optimizer="sgd", num_devices=8)
    largest = need.largest_batch(16e9)
    assert need.total(largest) <= 16e9 < need.total(largest + 1)


def test_published_batches_fit_where_they_were_run() -> None:
    """Batches that Lambda and NVIDIA ran ResNet-50 with, on cards that these nearly filled."""
    network = load_network("resnet50")
    for gigabytes, numerics, batch in ((16.9, "amp", 256), (25.4, "amp", 448), (51.0, "amp", 928),
                                       (85.0, "amp", 1280), (16.9, "fp32", 128),
                                       (25.4, "fp32", 224), (51.0, "fp32", 496)):  # fmt: skip
        need = training_memory(network, numerics, optimizer="sgd")  # type: ignore[arg-type]
        assert batch <= need.largest_batch(gigabytes * 1e9) < 1.6 * batch, (gigabytes, numerics)


def test_inference_holds_weights_and_one_operator() -> None:
    need = inference_memory(load_network("resnet50"), 2)
    assert need.terms(1)["weights"] == 2 * 25_557_032
    # The norm after the first block's last convolution reads and writes 256 x 56 x 56 numbers
    # beside a shortcut of as many.
    assert need.terms(1)["activations"] == 2 * 3 * 256 * 56 * 56
