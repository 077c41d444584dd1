"""Inference of vision models on this machine's GPU: each runtime, correct first, then how fast.

    python bench/gpu/vision.py [--rehearse]

ResNet-50, MobileNetV3-L and ViT-S/16 at 224², random weights, batch 1 and 8, float32 (no TF32) and
float16: eager, channels-last, CUDA graphs, TensorRT where it is installed, torch.compile,
AOTInductor. Images lie on the GPU; a call ends when the GPU has answered. Each row is compared with
eager float32 first (SQNR); one too far off is not timed, and the exit code is 1. P50 and P99 have
intervals from order statistics. `--rehearse`: a small model, also on a CPU.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn
from vision_models import MODELS, SMALL, made

from ridgeline.errors import RidgelineError
from ridgeline.measure.calls.loop import time_calls
from ridgeline.measure.calls.outliers import summarise
from ridgeline.measure.child.agreement import sqnr
from ridgeline.records.calls import Quantile
from ridgeline.runtimes import Precision, runtime
from ridgeline.runtimes.capture.converting import convert

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCHES = (1, 8)
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
LEAST_SQNR = 60.0
"""dB below which an answer in float32 is wrong."""
BELOW_EAGER = 3.0
"""How many dB below eager's own an answer in float16 may be; how well it does is the network's."""
WARM_CALLS = 10
Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """How much is run."""

    models: dict[str, Callable[[], nn.Module]]
    image: int
    seconds: float
    """How long each row is timed, if that gives `least` calls."""
    least: int
    most: int
    budget_seconds: float
    """No candidate is made after that."""


FULL = Size(MODELS, 224, 0.4, 400, 1000, 150.0)
REHEARSAL = Size(SMALL, 64, 0.0, 20, 20, 240.0)


@dataclass(frozen=True)
class Model:
    """One network in one precision, and what it must answer."""

    name: str
    precision: Precision
    module: nn.Module
    images: Tensor
    """Of the largest batch, in the precision."""
    wanted: Tensor
    """The logits of eager float32."""
    least_sqnr: float
    """dB below which an answer is wrong."""


class NotHere(Exception):
    """A candidate that this machine cannot run: a line of the table."""


def eager(model: Model, batch: int) -> Call:  # noqa: ARG001
    return model.module


def channels_last(model: Model, batch: int) -> Call:  # noqa: ARG001
    converted = copy.deepcopy(model.module).to(memory_format=torch.channels_last)
    return lambda images: converted(images.to(memory_format=torch.channels_last))


def cuda_graphs(model: Model, batch: int) -> Call:
    if DEVICE.type != "cuda":
        raise NotHere("needs a GPU")
    held = model.images[:batch].clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            model.module(held)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = model.module(held)

    def replay(images: Tensor) -> Tensor:
        held.copy_(images)
        graph.replay()
        return answer

    return replay


def tensorrt(model: Model, batch: int) -> Call:
    chosen = runtime("tensorrt")
    missing = chosen.missing()
    if missing is not None:
        raise NotHere(missing)
    # A runtime takes what the float32 model takes, in each precision.
    single = copy.deepcopy(model.module).float().cpu()
    example = (model.images[:batch].float().cpu(),)
    with tempfile.TemporaryDirectory() as folder:
        artifact = convert(
            chosen, single, example, {}, Path(folder), precision=model.precision, dynamic=()
        )
        loaded = chosen.load(artifact, threads=1)
    given = model.images.float()
    return lambda images: loaded(given[: len(images)])


def compiled(model: Model, batch: int) -> Call:  # noqa: ARG001
    torch._dynamo.reset()
    return torch.compile(copy.deepcopy(model.module), dynamic=False)


def aot_inductor(model: Model, batch: int) -> Call:
    program = torch.export.export(model.module, (model.images[:batch],))
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=f"{folder}/model.pt2",
            inductor_configs={"freezing": DEVICE.type == "cpu"},
        )
        return torch._inductor.aoti_load_package(path)


CANDIDATES: dict[str, Callable[[Model, int], Call]] = {
    "eager": eager,
    "channels-last": channels_last,
    "CUDA graphs": cuda_graphs,
    "TensorRT": tensorrt,
    "torch.compile": compiled,
    "AOTInductor": aot_inductor,
}
"""The quick ones to make first: where the time ends, the slow ones are not begun."""


def in_precisions(name: str, build: Callable[[], nn.Module], size: Size) -> Iterator[Model]:
    """The model with its images, once in each precision."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(max(BATCHES), 3, size.image, size.image, generator=draw).to(DEVICE)
    module = made(build, images)
    wanted = module(images).float()
    for precision, dtype in DTYPES.items():
        held, given = copy.deepcopy(module).to(dtype), images.to(dtype)
        least = LEAST_SQNR
        if precision != "fp32":
            each = (sqnr(wanted[:count], held(given[:count]).float()) for count in BATCHES)
            least = min(each) - BELOW_EAGER
        yield Model(name, precision, held, given, wanted, least)


def row(model: Model, batch: int, call: Call, size: Size) -> tuple[str, bool]:
    """The cells after the names, and whether the answer was right."""
    images = model.images[:batch]
    began = time.perf_counter()
    answer = call(images)
    synchronise()
    first = time.perf_counter() - began
    found = sqnr(model.wanted[:batch], answer.float())
    if not found >= model.least_sqnr:
        return f"wrong: {found:.1f} dB | | | |", False

    def once() -> None:
        call(images)
        synchronise()

    for _ in range(WARM_CALLS):
        once()
    samples = time_calls(once, seconds=size.seconds, least=size.least, most=size.most)
    times = summarise(samples, None)
    cells = f"{found:.0f} | {first:.2f} | {interval(times.p50)} | {interval(times.p99)}"
    return f"{cells} | {batch / times.p50.seconds:,.0f} |", True


def interval(of: Quantile) -> str:
    """Milliseconds with the 95 % interval; an end that these calls do not bound is open."""
    low, high = (
        "…" if end is None else f"{1e3 * end:.3f}" for end in (of.low_seconds, of.high_seconds)
    )
    return f"{1e3 * of.seconds:.3f} [{low}, {high}]"


def synchronise() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def table(size: Size) -> bool:
    """Print it; were all answers right, and none failed?"""
    print("| model | batch | precision | runtime | SQNR dB | first call s | P50 ms [95 %] "
          "| P99 ms [95 %] | images/s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    models = [one for name in size.models for one in in_precisions(name, size.models[name], size)]
    began, sound = time.perf_counter(), True
    for kind, make in CANDIDATES.items():
        for model in models:
            for batch in BATCHES:
                label = f"| {model.name} | {batch} | {model.precision} | {kind} |"
                if time.perf_counter() - began > size.budget_seconds:
                    print(f"{label} not begun: {size.budget_seconds:.0f} s are over | | | | |")
                    continue
                try:
                    cells, right = row(model, batch, make(model, batch), size)
                except NotHere as why:
                    cells, right = f"{why} | | | | |", True
                except (RuntimeError, RidgelineError) as error:  # the others are still worth having
                    said = str(error).splitlines()[:1]
                    cells, right = f"failed: {type(error).__name__}: {said} | | | | |", False
                sound &= right
                print(f"{label} {cells}", flush=True)
        gc.collect()
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    return sound


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rehearse", action="store_true")
    rehearse = options.parse_args().rehearse
    if DEVICE.type != "cuda" and not rehearse:
        sys.exit("bench/gpu/vision.py: PyTorch sees no GPU here; --rehearse runs a small model")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, a rehearsal"
    print(f"{name}, torch {torch.__version__}, {datetime.now(UTC).date()}\n")
    with torch.inference_mode(False), torch.no_grad():
        sound = table(REHEARSAL if rehearse else FULL)
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
