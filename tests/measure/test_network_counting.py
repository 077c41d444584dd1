"""Counting a module's operators, held to PyTorch's own counter; what each kind counts as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from ridgeline.cli.main import run  # noqa: E402
from ridgeline.errors import InputError  # noqa: E402
from ridgeline.measure.network.count import count_module, record_operators  # noqa: E402
from ridgeline.measure.network.source import (  # noqa: E402
    is_module,
    read_image_size,
    read_network,
)
from ridgeline.models.vision.folder import is_image_folder  # noqa: E402
from ridgeline.models.vision.network import VisionNetwork, VisionOperator  # noqa: E402


def flops_of_torch(module: nn.Module, size: tuple[int, int], channels: int = 3) -> int:
    image = torch.empty(1, channels, *size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(image)
    return counter.get_total_flops()


@settings(max_examples=60)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3),
    st.integers(1, 2), st.integers(0, 3), st.booleans(), st.booleans(), st.integers(16, 40),
    st.integers(16, 40),
)  # fmt: skip
def test_convolutions_of_every_shape_are_counted_as_torch_counts_them(
    groups: int, ins: int, outs: int, kernel: int, stride: int, dilation: int, padding: int,
    transposed: bool, bias: bool, height: int, width: int,
) -> None:  # fmt: skip
    kind: Any = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(
        groups * ins, groups * outs, kernel, stride=stride, padding=min(padding, kernel // 2),
        dilation=dilation, groups=groups, bias=bias, device="meta",
    )  # fmt: skip
    image = torch.empty(1, groups * ins, height, width, device="meta")
    with torch.no_grad():
        result = layer(image)
    network = count_module(layer, (height, width), channels=groups * ins)
    assert 2 * network.macs == flops_of_torch(layer, (height, width), groups * ins)
    (one,) = network.operators
    assert one.input_elements == image.numel()
    assert one.output_elements == result.numel() == network.activations
    assert one.weight_elements == network.parameters
    assert one.out_size == tuple(result.shape[2:])
    assert (one.groups, one.kernel, one.stride) == (groups, (kernel, kernel), (stride, stride))


def hugging_face(name: str, **sizes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**sizes)
    names = (f"{name}ForImageClassification", f"{name}ForSemanticSegmentation", f"{name}Model")
    kind = next(getattr(transformers, one) for one in names if hasattr(transformers, one))
    with torch.device("meta"):
        built: nn.Module = kind(config)
    return built


FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "ResNet": ({}, 224),
    "ViT": ({}, 224),
    "Swin": ({}, 224),
    "ConvNext": ({}, 224),
    "Segformer": ({}, 512),
    "MobileNetV2": ({}, 224),
    "Dinov2": ({}, 224),
    "PvtV2": ({}, 224),
}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_transformers_are_counted_as_torch_counts_them(name: str) -> None:
    sizes, image = FAMILIES[name]
    module = hugging_face(name, **sizes)
    network = count_module(module, (image, image))
    assert 2 * network.macs == flops_of_torch(module, (image, image))
    assert network.parameters == sum(one.numel() for one in module.parameters())


class Branches(nn.Module):
    """A network with views, a residual, a gate, a concatenation, attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16))
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.table = nn.Parameter(torch.zeros(16))
        self.head = nn.Linear(16, 10)

    def forward(self, image: Any) -> Any:
        plane = torch.relu(self.stem(image))
        for block in self.blocks:
            plane = plane + block(plane)
        tokens = self.norm(plane.flatten(2).transpose(1, 2))
        query, key, value = self.qkv(tokens).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens * torch.sigmoid(self.table * 2.0) + seen.transpose(1, 2).flatten(2)
        return self.head(tokens.mean(1))


@pytest.fixture
def branches() -> VisionNetwork:
    with torch.device("meta"):
        return count_module(Branches(), (32, 32))


def named(network: VisionNetwork, function: str) -> list[VisionOperator]:
    return [one for one in network.operators if one.function == function]


def test_layers_have_their_paths_and_equal_ones_stand_once(branches: VisionNetwork) -> None:
    found = [(one.name, one.count, one.after) for one in named(branches, "conv")]
    assert found == [("stem.0", 1, ""), ("blocks.0", 1, "relu"), ("blocks.1", 2, "add")]
    (norm,) = named(branches, "batch_norm")
    assert (norm.name, norm.after, norm.weight_elements) == ("stem.1", "conv", 32)


def test_views_cost_nothing_and_sums_read_both_sides(branches: VisionNetwork) -> None:
    assert not {"view", "permute", "transpose", "flatten"} & {
        one.function for one in branches.operators
    }
    sums = named(branches, "add")
    assert [one.count for one in sums] == [1, 2, 1]
    assert sums[0].input_elements == 2 * sums[0].output_elements == 2 * 16 * 16 * 16


def test_fused_attention_is_two_products_and_a_softmax(branches: VisionNetwork) -> None:
    scores, softmax, result = named(branches, "attention")
    assert [one.kind for one in (scores, softmax, result)] == ["product", "softmax", "product"]
    assert scores.macs == result.macs == 2 * 256 * 256 * 8
    assert scores.output_elements == softmax.input_elements == 2 * 256 * 256
    assert (scores.groups, scores.in_channels, scores.out_channels) == (2, 8, 256)


def test_work_on_parameters_alone_is_the_same_for_any_batch(branches: VisionNetwork) -> None:
    (gate,) = (one for one in branches.operators if one.function == "sigmoid")
    assert (gate.input_elements, gate.output_elements, gate.weight_elements) == (0, 0, 32)


def test_activations_are_what_convolutions_linears_and_products_write(
    branches: VisionNetwork,
) -> None:
    plane, tokens = 16 * 16 * 16, 256
    attention = 2 * tokens * tokens + tokens * 16
    assert branches.activations == 4 * plane + tokens * 48 + attention + 10


def test_a_norm_and_a_recurrent_layer_are_one_operator_each() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(32)
            self.layer = nn.LSTM(32, 24, batch_first=True, bidirectional=True)

        def forward(self, image: Any) -> Any:
            return self.layer(self.norm(image.flatten(2)[:, :, :32]))[0]

    with torch.device("meta"):
        module = Reads()
    norm, layer = record_operators(module, (16, 16))
    assert (norm.kind, norm.function, norm.weight_elements) == ("norm", "rms_norm", 32)
    assert layer.macs == 3 * 2 * 4 * 24 * (32 + 24)
    assert layer.after == "rms_norm"


def test_a_reduction_of_one_place_is_a_pool_like_any_other() -> None:
    class Mean(nn.Module):
        def forward(self, image: Any) -> Any:
            return image.mean((2, 3))

    for size in (1, 8):
        (one,) = record_operators(Mean(), (size, size))
        assert one.kind == "pool"


def test_counting_ends_where_shapes_depend_on_data_once_all_layers_have_run() -> None:
    class Detects(nn.Module):
        def __init__(self, *, late: bool) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 4, 3)
            self.late = nn.Linear(4, 4) if late else None

        def forward(self, image: Any) -> Any:
            scores = self.body(image)
            found = scores.permute(0, 2, 3, 1)[scores[:, 0] > 0.5]
            return found if self.late is None else self.late(found)

    with torch.device("meta"):
        whole, cut = Detects(late=False), Detects(late=True)
    assert count_module(whole, (32, 32)).macs == 4 * 27 * 30 * 30
    with pytest.raises(InputError, match=r"cut: how often \w+ runs waits for what \w+ finds"):
        count_module(cut, (32, 32), name="cut")


SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.body = nn.Sequential(nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32),
                                  nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(32, 10 + len(rates))
    def forward(self, x):
        return self.head(self.body(x).flatten(1))

def small():
    return Net()

number = 3
def broken():
    raise KeyError("width")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("thing", ["Net", "small"])
def test_a_script_s_class_or_function_is_counted_from_the_command(
    script: Path, thing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["roofline", f"{script}:{thing}", "--device", "h100", "--image", "64x48",
                "--phase", "prefill", "--json"]) == 0  # fmt: skip
    assert f'"model":"{thing}"' in capsys.readouterr().out.replace('": "', '":"')
    network = read_network(f"{script}:{thing}", (64, 48))
    assert network.macs == 32 * 9 * 32 * 24 + 32 * 13
    assert network.image_size == (64, 48)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("batch", [1, 4])
def test_an_exported_program_counts_as_its_module_does(
    script: Path, batch: int, tmp_path: Path
) -> None:
    with torch.device("cpu"):
        module = Branches().eval()
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(batch, 3, 32, 32),)), path)
    network = read_network(str(path))
    direct = count_module(module.to("meta"), (32, 32))
    assert (network.macs, network.activations) == (direct.macs, direct.activations)
    assert network.parameters == direct.parameters
    assert [one.name for one in named(network, "conv")] == ["stem.0", "blocks.0", "blocks.1"]
    assert network.image_size == (32, 32)


def test_a_folder_s_configuration_is_built_and_counted(tmp_path: Path) -> None:
    module = hugging_face("ViT")
    module.config.architectures = ["ViTForImageClassification"]  # type: ignore[union-attr]
    module.config.save_pretrained(tmp_path)  # type: ignore[union-attr,operator]
    for source in (f"hf:{tmp_path}", str(tmp_path)):
        network = read_network(source)
        assert network.image_size == (224, 224)
        assert network.parameters == sum(one.numel() for one in module.parameters())


def test_a_folder_of_a_network_for_clips_is_counted_with_as_many_frames(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.TimesformerConfig(
        num_frames=4, image_size=32, patch_size=16, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=64,
        architectures=["TimesformerForVideoClassification"],
    ).save_pretrained(tmp_path)  # fmt: skip
    conv = named(read_network(str(tmp_path)), "conv")[0]
    assert conv.macs * conv.count == 4 * 4 * 32 * 3 * 16 * 16


def test_a_folder_s_images_are_as_large_as_its_backbone_s(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.Dinov2Config(
        image_size=56, patch_size=14, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        out_features=["stage1"], reshape_hidden_states=False,
    )  # fmt: skip
    transformers.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=32, reassemble_factors=[1],
        neck_hidden_sizes=[16], fusion_hidden_size=8, head_hidden_size=8,
        architectures=["DepthAnythingForDepthEstimation"],
    ).save_pretrained(tmp_path)  # fmt: skip
    assert read_network(str(tmp_path)).image_size == (56, 56)


@pytest.mark.parametrize(
    ("config", "of_images"),
    [
        ({"architectures": ["VideoMAEForVideoClassification"]}, True),
        ({"architectures": ["PerceiverForImageClassificationLearned"], "vocab_size": 262}, True),
        ({"architectures": ["Dinov2Model"], "image_size": 518, "num_channels": 3}, True),
        ({"architectures": ["SamModel"], "vision_config": {}}, True),
        ({"architectures": ["LlavaModel"], "vision_config": {}, "text_config": {}}, False),
        ({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000}, False),
        ({}, False),
    ],
)
def test_a_folder_is_of_images_by_its_class_or_by_what_its_configuration_sizes(
    config: dict[str, Any], of_images: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert is_image_folder(tmp_path) is is_module(str(tmp_path)) is of_images


def test_a_class_of_transformers_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(tmp_path)
    found = type(transformers).__getattr__

    def lacking(module: Any, name: str) -> Any:
        if name == "ViTForImageClassification":
            raise ModuleNotFoundError(f"Could not import module {name!r}")
        return found(module, name)

    monkeypatch.delitem(vars(transformers), "ViTForImageClassification", raising=False)
    monkeypatch.setattr(type(transformers), "__getattr__", lacking)
    assert run(["predict", "inference", "--model", str(tmp_path), "--device", "h100"]) == 2
    said = capsys.readouterr().err
    assert "ViTForImageClassification of transformers: Could not import module" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{script}:Missing", "defines no 'Missing'"),
        ("{script}:number", "gives a int; return an nn.Module"),
        ("{script}:broken", "net.py:broken: fails with 'width' (KeyError, net.py line "),
        ("{folder}/unet.py:Net", "it has the name of a module that it imports; call it otherwise"),
        ("{folder}/parts.py:Net", "it has the name of a module that it imports; call it otherwise"),
        ("{folder}/lacks.py:Net", "lacks.py:Net: fails with No module named 'kornia_of_nobody'"),
        ("{folder}/absent.py:Net", "absent.py: no such file; check the path"),
        ("{folder}/absent.pt2", "absent.pt2: no such file; check the path"),
        ("{script}.pt2", "is no exported program"),
        ("hf:{folder}", "config"),
        ("{script}:Net --image 0", "--image 0: give a side as 224"),
        ("{script}:Net --image big", "--image big: give a side as 224"),
        ("gpt2 --image 224", "--image: gpt2 is no vision network"),
    ],
)
def test_what_cannot_be_counted_is_one_line(
    source: str, message: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py.pt2").write_text("no archive")
    (tmp_path / "unet.py").write_text("from unet import Net")
    (tmp_path / "parts.py").write_text("def Net():\n    from parts.config import WIDTH\n")
    (tmp_path / "lacks.py").write_text(
        "import sys, types\n"
        "def Net():\n"
        "    if 'half' in sys.modules:\n"
        "        raise KeyError('what the first attempt left behind')\n"
        "    sys.modules['half'] = types.ModuleType('half')\n"
        "    import kornia_of_nobody\n"
    )
    words = source.format(script=script, folder=tmp_path).split()
    assert run(["roofline", *words, "--device", "h100"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert message in said


def test_a_script_may_bear_the_name_of_the_package_that_it_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src/flownet").mkdir(parents=True)
    (tmp_path / "src/flownet/__init__.py").write_text("")
    (tmp_path / "src/flownet/parts.py").write_text("WIDTH = 4")
    (tmp_path / "flownet.py").write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'src')!r})\n"
        "from torch import nn\n"
        "from flownet.parts import WIDTH\n"
        "def net(): return nn.Conv2d(3, WIDTH, 3)\n"
    )
    words = ["roofline", f"{tmp_path}/flownet.py:net", "--device", "h100", "--image", "32"]
    assert run(words) == 0, capsys.readouterr().err


STRANGERS = """
import torch
from torch import nn

class Detector(nn.Module):
    # A grid in a list, scales in a ParameterList, constants on the CPU, boxes suppressed one by one
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, stride=8, padding=1)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1))])
        self.cells = nn.Parameter(torch.tensor([4, 4]), requires_grad=False)
        self.grid = [torch.empty(0)]
    def forward(self, x):
        f = self.body(x) * self.scales[0]
        if self.grid[0].shape != f.shape[-2:]:
            self.grid[0] = torch.arange(f.shape[-1]).float().expand(f.shape[-2:])
        pooled = nn.functional.adaptive_avg_pool2d(f + self.grid[0], int(self.cells[0]))
        scores = pooled.flatten(1)[0]
        order, kept = scores.argsort(), []
        while order.numel():
            kept.append(order[0].item())
            order = order[1:][scores[order[1:]] > scores[kept[-1]]]
        return kept
"""


def test_a_detector_whose_forward_needs_numbers_is_counted_up_to_its_suppression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "strange.py").write_text(STRANGERS)
    assert run(["predict", "inference", "--model", f"{tmp_path}/strange.py:Detector", "--device",
                "t4", "--image", "64x32", "--json"]) == 0  # fmt: skip
    capsys.readouterr()
    network = read_network(f"{tmp_path}/strange.py:Detector", (64, 32))
    assert network.macs == 8 * 27 * 8 * 4
    assert sum(one.count for one in network.operators) < 12


def test_an_image_is_one_side_or_two() -> None:
    assert read_image_size("480x640") == (480, 640)
    with pytest.raises(InputError, match="give a side"):
        read_image_size("1x2x3")


RIG = """
import torch
from torch import nn

class Rig(nn.Module):
    # Features of six cameras, put where their poses say.
    def __init__(self):
        super().__init__()
        self.camera = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    def forward(self, images, intrinsics, scale=1.0):
        batch, cameras, *rest = images.shape
        features = self.camera(images.reshape(batch * cameras, *rest)).flatten(2)
        rays = torch.inverse(intrinsics).reshape(batch * cameras, 3, 3)
        return rays[:, :, :1] * features.mean(1, keepdim=True)

class OfOneDict(Rig):
    def forward(self, batch):
        return super().forward(batch["images"], batch["intrinsics"])

class OfPoints(Rig):
    # Segment Anything calls what its points are labels
    def forward(self, images, intrinsics, labels):
        return super().forward(images, intrinsics) * labels.mean()
"""


FOCUS = """
import torch
from torch import nn

class Focus(nn.Module):
    # Pixels in blocks of four, as YOLOX begins: the first convolution sees twelve channels.
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(12, 8, 3, padding=1)
    def forward(self, x):
        return self.stem(nn.functional.pixel_unshuffle(x, 2))
"""


def test_colours_are_what_a_network_that_rearranges_pixels_takes(tmp_path: Path) -> None:
    (tmp_path / "focus.py").write_text(FOCUS)
    network = read_network(f"{tmp_path}/focus.py:Focus", (32, 32))
    assert network.macs == 8 * 12 * 9 * 16 * 16


def test_a_rig_of_cameras_is_forecast_from_a_sample_of_each_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, sample = tmp_path / "rig.py", tmp_path / "sample.npz"
    script.write_text(RIG)
    images = np.zeros((2, 6, 3, 32, 48), np.float32)
    np.savez(sample, images=images, intrinsics=np.tile(np.eye(3, dtype=np.float32), (2, 6, 1, 1)))
    asked = ["predict", "inference", "--model", f"{script}:Rig", "--device", "orin", "--json"]
    assert run([*asked, "--inputs", str(sample)]) == 0
    assert json.loads(capsys.readouterr().out)["image_size"] == [32, 48]
    for name in ("Rig", "OfOneDict"):
        network = read_network(f"{script}:{name}", inputs=sample)
        assert named(network, "conv")[0].macs == 6 * 8 * 27 * 16 * 24, "one sample is six images"
    labels = {**np.load(sample), "labels": np.ones((2, 4), np.float32)}
    np.savez(sample, **labels)
    for name in ("Rig", "OfPoints"):
        assert read_network(f"{script}:{name}", inputs=sample).macs >= network.macs
    assert run(asked) == 2
    assert "forward(images, intrinsics, scale) also needs intrinsics; give a" in (
        capsys.readouterr().err
    )


LIBRARY = """
from torch import nn

class Library(nn.Module):
    # As transformers writes them: its own name for the images, and anything else by name.
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
    def forward(self, pixel_values, labels=None, **kwargs):
        assert not kwargs, f"{[*kwargs]} would reach a layer that does not know them"
        return self.stem(pixel_values)
"""


@pytest.mark.parametrize("name", ["x", "pixel_values"])
def test_one_array_of_any_name_is_the_first_argument_also_where_forward_takes_any_name(
    name: str, tmp_path: Path
) -> None:
    script, sample = tmp_path / "library.py", tmp_path / "sample.npz"
    script.write_text(LIBRARY)
    np.savez(sample, **{name: np.zeros((1, 3, 16, 16), np.float32)})
    assert read_network(f"{script}:Library", inputs=sample).macs == 8 * 27 * 16 * 16


@pytest.mark.parametrize(
    ("model", "arrays", "message"),
    [
        ("{script}:Rig", {"images": 2, "poses": 2}, "has no argument poses; give a sample"),
        ("{script}:Rig", {"images": 2, "intrinsics": 3}, "tensors of [2, 3] rows"),
        ("resnet50", {"images": 2}, "only a model that is built takes it"),
    ],
)
def test_inputs_that_do_not_fit_are_one_line(
    model: str,
    arrays: dict[str, int],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script, sample = tmp_path / "rig.py", tmp_path / "sample.npz"
    script.write_text(RIG)
    np.savez(sample, **{name: np.zeros((rows, 3)) for name, rows in arrays.items()})
    words = ["roofline", model.format(script=script), "--device", "h100", "--inputs", str(sample)]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert message in said
