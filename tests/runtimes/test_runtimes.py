"""Runtimes through their own converters: what goes in and comes out, other sizes, int8."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from tests.runtimes.planted import modules

from ridgeline.errors import ExportError, InputError
from ridgeline.measure.child.agreement import sqnr
from ridgeline.runtimes import Artifact, ModelCall, all_runtimes, runtime
from ridgeline.runtimes.capture.answering import Answering
from ridgeline.runtimes.capture.converting import convert
from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import

pytestmark = pytest.mark.filterwarnings("ignore")
"""torch, onnxscript and nncf warn of each other while they convert."""

HERE = ["onnx", "openvino", "torch-export", "aoti"]
ENOUGH_FP32 = 1e-4


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def images(batch: int = 2, size: int = 64) -> torch.Tensor:
    """Smooth pictures with edges: convolutions see structure, not noise."""
    ramp = torch.linspace(-1, 1, size)
    angles = torch.linspace(0, 3, batch)[:, None, None, None]
    waves = torch.sin(angles + 6 * ramp[:, None] + 3 * ramp * torch.arange(1, 4)[:, None, None])
    return (waves + (ramp > 0.2 * angles).float()).contiguous()


def resnet(stages: int = 3) -> torch.nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64][:stages], depths=[1] * stages,
        layer_type="basic", num_labels=10,
    )  # fmt: skip
    model: torch.nn.Module = transformers.ResNetForImageClassification(config).eval()
    return model


def vit() -> torch.nn.Module:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        image_size=64, patch_size=16, num_labels=10,
    )  # fmt: skip
    model: torch.nn.Module = transformers.ViTForImageClassification(config).eval()
    return model


def test_every_runtime_says_what_it_is_and_whether_it_can_run_here() -> None:
    for name, one in all_runtimes().items():
        assert one.CARD.name == name
        assert one.CARD.precisions[0] == "fp32"
        assert one.CARD.source.startswith("https://")
        missing = one.missing()
        assert missing is None or (len(missing.splitlines()) == 1 and "not installed" in missing)
    with pytest.raises(InputError, match="known: aoti"):
        runtime("caffe")


def test_judging_what_is_missing_imports_no_runtime() -> None:
    code = (
        "import sys\nfrom ridgeline.runtimes import all_runtimes\n"
        "[one.missing() for one in all_runtimes().values()]\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'openvino', 'nncf', 'executorch'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_installed_is_said_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nncf" else found(name)
    )
    assert runtime("openvino").missing() == (
        "nncf is not installed; run: pip install 'ridgeline[export]'"
    )


def test_tensorrt_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from ridgeline.hardware import accelerators

    tensorrt, found = runtime("tensorrt"), importlib.util.find_spec
    there = {"tensorrt": found("torch")}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorrt" else found(name)
    )
    assert tensorrt.missing() == (
        "tensorrt is not installed; run: pip install tensorrt onnx onnxscript"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there.get(name) or found(name))
    monkeypatch.setattr(accelerators, "find_gpus", lambda: ([], ["nvidia-smi: no driver"]))
    assert tensorrt.missing() == (
        "an NVIDIA GPU with its driver is not installed here, which TensorRT needs "
        "(nvidia-smi: no driver)"
    )
    gpu = accelerators.Gpu(
        index=0, name="NVIDIA L4", device="l4", memory_bytes=None, driver="570.1",
        power_limit_watts=None,
    )  # fmt: skip
    monkeypatch.setattr(accelerators, "find_gpus", lambda: ([gpu], []))
    assert tensorrt.missing() is None


@pytest.mark.slow
def test_a_module_in_half_precision_becomes_an_onnx_graph_that_takes_float32(
    tmp_path: Path,
) -> None:
    import onnxruntime

    from ridgeline.runtimes.capture.half import HalfPrecision
    from ridgeline.runtimes.capture.onnx_file import write_onnx
    from ridgeline.runtimes.capture.program import capture

    model, pixels = vit(), images(3)
    captured = capture(
        HalfPrecision(model), (pixels,), {}, dynamic=("batch",), folder=tmp_path / "made"
    )
    write_onnx(captured, tmp_path / "half.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "half.onnx"), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"input_0": pixels.numpy()})
    with torch.no_grad():
        assert 40 < sqnr(model(pixels).logits, torch.from_numpy(found)) < 90
    assert next(model.parameters()).dtype is torch.float32


@pytest.mark.sweep("onnx")
@pytest.mark.parametrize("name", HERE)
def test_a_program_answers_as_the_module_does_at_every_batch(name: str, tmp_path: Path) -> None:
    model, pixels = resnet(stages=2), images(1)
    made = convert(runtime(name), model, (), {"pixel_values": pixels}, tmp_path / "made")
    run = runtime(name).load(Artifact.read(tmp_path / "made"), threads=1)
    assert made.size_bytes > 50_000
    with torch.no_grad():
        for batch in (1, 2, 5):
            wanted, found = model(images(batch)), run(pixel_values=images(batch))
            assert type(found) is type(wanted)
            assert (found.logits - wanted.logits).abs().max() < ENOUGH_FP32
    with pytest.raises(InputError, match=r"made for .*free in batch"):
        run(pixel_values=images(2, 32))
    with pytest.raises(InputError, match="the program was made for"):
        run(images(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_how_images_lie_in_memory_changes_no_answer(name: str, tmp_path: Path) -> None:
    model, pixels = resnet(), images(8)
    last = pixels.to(memory_format=torch.channels_last)
    convert(runtime(name), model, (last[:2],), {}, tmp_path / "made")
    run = runtime(name).load(Artifact.read(tmp_path / "made"), threads=1)
    with torch.no_grad():
        for lying in (pixels, last, pixels[1::2], pixels.flip(3).transpose(2, 3)):
            assert (run(lying).logits - model(lying).logits).abs().max() < ENOUGH_FP32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino", "torch-export", "aoti"])
def test_height_and_width_stay_free_where_they_are_asked_to(name: str, tmp_path: Path) -> None:
    model = resnet()
    made = convert(
        runtime(name), model, (images(2),), {}, tmp_path / "made", dynamic=("batch", "size")
    )
    run = runtime(name).load(made, threads=1)
    with torch.no_grad():
        for pixels in (images(3, 64), images(1, 96)):
            assert (run(pixels).logits - model(pixels).logits).abs().max() < ENOUGH_FP32


@pytest.mark.slow
@pytest.mark.parametrize("network", [resnet, vit], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_int8_takes_its_ranges_from_the_calls_that_it_is_given(
    name: str, network: object, tmp_path: Path
) -> None:
    model = network()  # type: ignore[operator]
    calls = [ModelCall((images(4) * scale,), {}) for scale in (0.8, 0.9, 1.0, 1.1)]
    single = convert(runtime(name), model, (images(4),), {}, tmp_path / "fp32")
    made = convert(
        runtime(name),
        model,
        (images(4),),
        {},
        tmp_path / "int8",
        precision="int8",
        calibration=calls,
    )
    assert "int8 ranges from 16 samples" in made.notes
    assert any("softmax" in line for line in made.notes) == (network is vit)
    assert made.size_bytes < 0.75 * single.size_bytes
    with torch.no_grad():
        pixels = images(4) * 0.95
        found = runtime(name).load(made, threads=1)(pixels).logits
        assert 12 < sqnr(model(pixels).logits, found) < 70


@pytest.mark.slow
def test_int8_without_calls_is_refused(tmp_path: Path) -> None:
    for name in ("onnx", "openvino"):
        with pytest.raises(InputError, match="none was given"):
            convert(runtime(name), resnet(), (images(),), {}, tmp_path / "x", precision="int8")
    with pytest.raises(InputError, match="does not compute in int8 here; it has fp32"):
        convert(
            runtime("torch-export"), resnet(), (images(),), {}, tmp_path / "x", precision="int8"
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_openvino_computes_in_the_precision_that_it_is_asked_for(tmp_path: Path) -> None:
    model, pixels = resnet(), images(2)
    with torch.no_grad():
        wanted = model(pixels).logits
    errors = {}
    for precision in ("fp32", "bf16"):
        made = convert(
            runtime("openvino"),
            model,
            (pixels,),
            {},
            tmp_path / precision,
            precision=precision,  # type: ignore[arg-type]
        )
        found = runtime("openvino").load(made, threads=1)(pixels).logits
        errors[precision] = sqnr(wanted, found)
    assert errors["fp32"] > 90
    bf16 = torch.cpu.is_available() and "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    assert (20 < errors["bf16"] < 70) or not bf16


@pytest.mark.slow
def test_conversion_says_nothing_and_leaves_the_module_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    keys, random = set(vars(model)), torch.get_rng_state()
    convert(runtime("onnx"), model, (images(),), {}, tmp_path / "made")
    assert capfd.readouterr().out == ""
    assert set(vars(model)) == keys
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "cls",
    [
        modules.WritesAView, modules.Contracts, modules.Warps, modules.RoundsStraight,
        modules.SelectsByMask, modules.StridesOnce, modules.HandsToItsDecoder,
    ],
    ids=lambda cls: cls.__name__,
)  # fmt: skip
@pytest.mark.sweep("openvino-WritesAView")
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_what_looks_hard_and_converts_computes_the_same(
    cls: type[torch.nn.Module], name: str, tmp_path: Path
) -> None:
    model = cls().eval()
    made = convert(runtime(name), model, (torch.randn(2, 3, 64, 64),), {}, tmp_path / "made")
    pixels = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        found, wanted = runtime(name).load(made, threads=1)(pixels), model(pixels)
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_keywords_constants_and_nested_outputs_come_back_in_a_fresh_process(
    tmp_path: Path,
) -> None:
    model, pixels = modules.TakesKeywordsOnly().eval(), torch.randn(2, 3, 64, 64)
    convert(runtime("onnx"), model, (), {"pixels": pixels, "scale": 2.0}, tmp_path / "made")
    torch.save(pixels, tmp_path / "pixels.pt")
    code = (
        "import torch\nfrom pathlib import Path\n"
        "from ridgeline.runtimes import Artifact, runtime\n"
        f"made = Artifact.read(Path({str(tmp_path / 'made')!r}))\n"
        f"pixels = torch.load({str(tmp_path / 'pixels.pt')!r})\n"
        "found = runtime(made.runtime).load(made, threads=1)(pixels=pixels, scale=2.0)\n"
        "assert found['labels'] == ['a', 'b'], found\n"
        f"torch.save(found['logits'], {str(tmp_path / 'logits.pt')!r})\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    with torch.no_grad():
        wanted = model(pixels=pixels, scale=2.0)["logits"]
    assert torch.allclose(torch.load(tmp_path / "logits.pt"), wanted, atol=1e-5)
    with pytest.raises(InputError, match="holds no exported module"):
        Artifact.read(tmp_path)


class Settings(torch.nn.Module):
    """A network that keeps its settings as lists in lists, as many public ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = [[3, 8, 1], [8, 16, {"stride": 2}]]
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


def test_settings_in_nested_lists_are_no_state_that_forward_changes(tmp_path: Path) -> None:
    module, images = Settings().eval(), torch.rand(2, 3, 16, 16)
    made = convert(runtime("torch-export"), module, (images,), {}, tmp_path / "made")
    with torch.no_grad():
        assert torch.equal(runtime("torch-export").load(made, threads=1)(images), module(images))


@pytest.mark.slow
def test_loops_of_aotinductor_are_cut_for_the_threads_of_whoever_calls(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made = convert(runtime("aoti"), resnet(), (images(),), {}, tmp_path / "made")
    finally:
        torch.set_num_threads(before)
    with zipfile.ZipFile(made.path) as package:
        code = b"".join(package.read(name) for name in package.namelist() if ".cpp" in name)
    assert b"#pragma omp parallel" in code
    assert b"num_threads(2)" not in code


class InvertsPoses(torch.nn.Module):
    """What a bird's-eye view does with its cameras."""

    def forward(self, poses: torch.Tensor, intrinsics: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(poses)[..., :3, :3] @ torch.inverse(intrinsics)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_inverses_of_poses_and_intrinsics_are_written_out(name: str, tmp_path: Path) -> None:
    turn = torch.linalg.matrix_exp(torch.randn(2, 4, 4) / 4)
    intrinsics = torch.eye(3) * torch.tensor([800.0, 790.0, 1.0])
    intrinsics[:2, 2] = torch.tensor([320.0, 240.0])
    calls = (turn, intrinsics.expand(2, 3, 3).contiguous())
    model = InvertsPoses().eval()
    made = convert(runtime(name), model, calls, {}, tmp_path / "made")
    torch.testing.assert_close(runtime(name).load(made, threads=1)(*calls), model(*calls))


class FindsPeaks(torch.nn.Module):
    """Row and column of the highest place, as decoders of heatmaps have them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = x.flatten(1).argmax(1)
        return torch.stack([place // x.shape[-1], place % x.shape[-1], -place % x.shape[-2]], -1)


def test_a_remainder_by_a_free_size_is_written_out(tmp_path: Path) -> None:
    model = FindsPeaks().eval()
    card, free = runtime("onnx"), ("batch", "size")
    made = convert(card, model, (images(2, 16),), {}, tmp_path / "made", dynamic=free)
    run = card.load(made, threads=1)
    for shown in (images(2, 16), images(3, 24)):
        assert torch.equal(run(shown), model(shown))


class Splats(torch.nn.Module):
    """Features added up in the cells of a grid, as lift-splat-shoot does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.zeros(x.shape[0], 4, 3, 16)
        return grid.flatten(1, 2).index_add(1, torch.arange(16) % 12, x[:, 0])


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_operator_that_a_runtime_lacks_is_written_in_others(name: str, tmp_path: Path) -> None:
    model, shown = Splats().eval(), images(2, 16)
    made = convert(runtime(name), model, (shown,), {}, tmp_path / "made")
    torch.testing.assert_close(runtime(name).load(made, threads=1)(shown), model(shown))


class MasksItself(torch.nn.Module):
    """Attention that leaves each anchor out for itself, as LaneATT's does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        anchors = x.flatten(1).shape[1]
        return x.flatten(1) @ (1 - torch.eye(anchors))


def test_an_identity_matrix_of_more_than_256_rows_is_taken_by_openvino(tmp_path: Path) -> None:
    model, shown = MasksItself().eval(), images(2, 16)
    made = convert(runtime("openvino"), model, (shown,), {}, tmp_path / "made")
    torch.testing.assert_close(runtime("openvino").load(made, threads=1)(shown), model(shown))


class PoolsToOnePixel(torch.nn.Module):
    """A pyramid whose coarsest level is one pixel at the example's size, as DDRNet's is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coarse = torch.nn.functional.avg_pool2d(x, 17, stride=16, padding=8)
        return torch.nn.functional.interpolate(coarse, size=x.shape[-2:], mode="bilinear") + x


def test_a_size_beyond_what_a_capture_took_for_granted_is_told_with_the_cure(
    tmp_path: Path,
) -> None:
    card = runtime("torch-export")
    made = convert(
        card, PoolsToOnePixel().eval(), (images(2, 16),), {}, tmp_path / "made",
        dynamic=("batch", "size"),
    )  # fmt: skip
    program = card.load(made, threads=1)
    assert program(images(3, 16)).shape == (3, 3, 16, 16)
    with pytest.raises(ExportError, match=r"captured where .*height.*--fix size"):
        program(images(2, 64))


def test_an_onnx_file_of_free_sizes_claims_no_size_that_was_the_examples_alone(
    tmp_path: Path,
) -> None:
    import onnx

    card = runtime("onnx")
    model = PoolsToOnePixel().eval()
    made = convert(
        card, model, (images(2, 16),), {}, tmp_path / "made", dynamic=("batch", "size")
    )  # fmt: skip
    between = onnx.load(made.path).graph.value_info
    assert not [one.name for one in between if one.type.tensor_type.HasField("shape")]
    run = card.load(made, threads=1)
    for pixels in (images(3, 16), images(2, 64), images(3, 16)):
        assert (run(pixels) - model(pixels)).abs().max() < ENOUGH_FP32


BROKEN_TORCHVISION = """
import torch
if not hasattr(torch.ops.torchvision, "deform_conv2d"):
    raise RuntimeError("operator torchvision::nms does not exist")
"""
BOXES = """
from collections import namedtuple
import torchvision
Boxes = namedtuple("Boxes", "scores")
"""


def test_a_class_behind_a_torchvision_of_another_torch_is_found_as_a_program_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(BROKEN_TORCHVISION)
    (tmp_path / "boxes_of_it.py").write_text(BOXES)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torchvision", "boxes_of_it"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    let_torchvision_import.cache_clear()
    artifact = Artifact(
        folder=tmp_path, runtime="onnx", precision="fp32", file="", files=[], free=[],
        inputs={"tuple": [{"tuple": [{"tensor": 0}]}, {"dict": []}]},
        outputs={"object": "boxes_of_it:Boxes", "fields": [["scores", {"tensor": 0}]]},
        shapes=[[1]], dtypes=["float32"],
    )  # fmt: skip
    try:
        run = Answering(artifact, lambda tensors: [torch.ones(1)])
        assert "boxes_of_it" in sys.modules, "the first call would take as long as its import"
        assert type(run(torch.ones(1))).__name__ == "Boxes"
    finally:
        let_torchvision_import.cache_clear()
        for name in ("torchvision", "boxes_of_it"):
            sys.modules.pop(name, None)
