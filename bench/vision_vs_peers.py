"""Inference of vision models: `ridgeline export` beside the runtimes called by hand, in turns.

    OMP_NUM_THREADS=2 python bench/vision_vs_peers.py IMAGES [--minutes 4] [--models …] [--write]

IMAGES is a folder of photographs. ResNet-50, MobileNetV3-L, ViT-S/16 at 224², batch 1 and 8, with
random weights and BatchNorm statistics of the images (weights change no time, statistics keep the
activations finite). Each candidate has a process of its own, made before the rounds and called in
turns: torch eager, eager bfloat16 channels-last, torch.compile, the conversions written by hand as
their manuals say, and the files that `ridgeline export` wrote. Agreement is that of the largest
output with eager float32. `--write` replaces docs/results/vision_vs_peers.md. timm gives the three
models (`pip install --no-deps timm torchvision`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs/results/vision_vs_peers.md"
MODELS = {
    "resnet50": "resnet50",
    "mobilenetv3": "mobilenetv3_large_100",
    "vit-s": "vit_small_patch16_224",
}
BY_HAND = (
    "eager", "eager bf16 channels-last", "compile", "AOTInductor", "ONNX Runtime",
    "ONNX Runtime int8", "OpenVINO f32", "OpenVINO bf16", "OpenVINO int8",
)  # fmt: skip
EXPORTED = (
    ("aoti", "fp32"), ("onnx", "fp32"), ("openvino", "fp32"),
    ("onnx", "int8"), ("openvino", "bf16"), ("openvino", "int8"),
)  # fmt: skip
BATCHES = (1, 8)
ROUNDS = 7


def build(name, images):
    """The model in evaluation mode, its BatchNorm statistics those of the images."""
    import torch

    from ridgeline.measure.network.torchvision_schemas import let_torchvision_import

    let_torchvision_import()
    import timm

    torch.manual_seed(0)
    model = timm.create_model(MODELS[name], pretrained=False)
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # the mean over the batches
    model.train()
    with torch.no_grad():
        for batch in images.split(16):
            model(batch)
    return model.eval()


def photographs(folder, count):
    import numpy as np
    import torch

    from ridgeline.image_files.preprocess import Preprocess
    from ridgeline.image_files.source import open_images

    source, change = open_images("IMAGES", folder), Preprocess()
    places = [place * len(source) // count for place in range(min(count, len(source)))]
    return torch.from_numpy(np.stack([change(source.read(place)) for place in places]))


def by_hand(kind, model, images, folder):
    """A function from images to logits, as its manual writes it."""
    import torch

    threads = torch.get_num_threads()
    batch = torch.export.Dim.AUTO
    if kind == "eager":
        return model
    if kind == "eager bf16 channels-last":
        model = model.to(torch.bfloat16, memory_format=torch.channels_last)
        return lambda x: model(x.to(torch.bfloat16, memory_format=torch.channels_last)).float()
    if kind == "compile":
        return torch.compile(model)
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    if kind == "AOTInductor":
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/m.pt2")
        return torch._inductor.aoti_load_package(path)
    if kind.startswith("ONNX"):
        import onnxruntime

        path = f"{folder}/m.onnx"
        torch.onnx.export(program, dynamo=True, verbose=False).save(path)
        if kind.endswith("int8"):
            path = quantised_onnx(path, images)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        taken = session.get_inputs()[0].name
        return lambda x: torch.from_numpy(session.run(None, {taken: x.numpy()})[0])
    import nncf
    import openvino

    found = openvino.convert_model(program)
    if kind.endswith("int8"):
        shown = nncf.Dataset([one.numpy() for one in images[:64].split(1)])
        attention = any("attention" in name for name, _ in model.named_modules())
        scheme = nncf.ModelType.TRANSFORMER if attention else None
        found = nncf.quantize(found, shown, model_type=scheme, subset_size=64)
    hint = "bf16" if kind.endswith("bf16") else "f32"
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.compile_model(found, "CPU", settings)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def quantised_onnx(path, images):
    import onnxruntime.quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            import onnx

            name = onnx.load(path, load_external_data=False).graph.input[0].name
            self.rows = iter([{name: one.numpy()} for one in images[:64].split(1)])

        def get_next(self):
            return next(self.rows, None)

    quant_pre_process(path, f"{path}.ready", skip_symbolic_shape=True)
    made = f"{path}.int8.onnx"
    q.quantize_static(f"{path}.ready", made, Reader(), per_channel=True)
    return made


def serve(folder, name, kind):
    """The process of one candidate: ready, then one answer for each round that is asked for."""
    import torch

    from ridgeline.measure.network.torchvision_schemas import let_torchvision_import

    let_torchvision_import()  # the pickled model brings timm, which imports it
    kept = torch.load(Path(folder) / f"{name}.pt", weights_only=False)
    images, model = kept["images"], kept["model"]
    if kind.startswith("export "):
        from ridgeline.runtimes import Artifact, runtime

        _, target, precision = kind.split()
        artifact = Artifact.read(Path(folder) / f"{name}-{precision}" / target)
        call = runtime(target).load(artifact, threads=torch.get_num_threads())
    else:
        call = by_hand(kind, model, images, tempfile.mkdtemp(dir=folder))
    with torch.inference_mode():
        judged = images[1::2][:64]
        said = torch.cat([first(call(one)) for one in judged.split(8)])
        agreement = float((said.argmax(1) == kept["wanted"]).double().mean())
        for batch in BATCHES:
            call(images[:batch])
        print(json.dumps({"agreement": agreement}), flush=True)
        for line in sys.stdin:
            batch, seconds = json.loads(line)
            given, times, ends = images[:batch], [], time.perf_counter() + seconds
            while time.perf_counter() < ends or len(times) < 3:
                started = time.perf_counter()
                call(given)
                times.append(time.perf_counter() - started)
            print(json.dumps(times), flush=True)


def first(answer):
    return answer[0] if isinstance(answer, (list, tuple)) else answer


def prepare(folder, name, images_folder):
    """In a process of its own: model, images and what eager answers; then `ridgeline export`."""
    import torch

    images = photographs(images_folder, 128)
    model = build(name, images[:32])
    with torch.no_grad():
        wanted = torch.cat([model(one).argmax(1) for one in images[1::2][:64].split(8)])
    torch.save({"images": images, "model": model, "wanted": wanted}, folder / f"{name}.pt")
    torch.save(model.state_dict(), folder / f"{name}.weights.pt")
    for precision in ("fp32", "bf16", "int8"):
        targets = [target for target, one in EXPORTED if one == precision]
        to = [word for target in targets for word in ("--to", target)]
        command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", "export"]
        command += [f"timm:{MODELS[name]}", "--weights", f"{folder}/{name}.weights.pt", *to]
        command += ["--check", str(images_folder), "--precision", precision, "--no-speed"]
        command += ["--fix", "size", "--out", f"{folder}/{name}-{precision}"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


class Candidate:
    """One process, and the times of its rounds."""

    def __init__(self, folder, name, kind):
        self.kind = kind
        self.times = {batch: [] for batch in BATCHES}
        with tempfile.TemporaryFile(dir=folder) as said:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve", str(folder), name, kind],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip
            line = next((line for line in self.process.stdout if line.startswith("{")), None)
            self.agreement = None if line is None else json.loads(line)["agreement"]
            said.seek(0)
            self.said = said.read().decode(errors="replace").strip()

    def round(self, batch, seconds):
        """Call for so long."""
        self.process.stdin.write(json.dumps([batch, seconds]) + "\n")
        self.process.stdin.flush()
        self.times[batch].append(json.loads(self.process.stdout.readline()))

    def median(self, batch):
        """Seconds of the middle call."""
        return statistics.median(time for times in self.times[batch] for time in times)

    def end(self):
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def judge(folder, name, seconds):
    """Rows of one model: (candidate, agreement, P50 and P99 of each batch)."""
    kinds = [*BY_HAND, *(f"export {target} {precision}" for target, precision in EXPORTED)]
    candidates = []
    for kind in kinds:
        print(f"{name}: {kind}", file=sys.stderr, flush=True)
        one = Candidate(folder, name, kind)
        if one.agreement is None:
            one.end()
            why = one.said.splitlines()[-1:] or ["it said nothing"]
            print(f"{name}: {kind} could not be made: {why[0]}", file=sys.stderr)
        else:
            candidates.append(one)
    ours = sum(one.kind.startswith("export ") for one in candidates)
    if ours in (0, len(candidates)):
        sys.exit(f"{name}: {ours} of {len(candidates)} candidates are of `ridgeline export`: "
                 "nothing to compare")  # fmt: skip
    each = seconds / len(candidates) / ROUNDS / len(BATCHES)
    for _ in range(ROUNDS):
        for batch in BATCHES:
            for one in candidates:
                one.round(batch, each)
    for one in candidates:
        one.end()
    return candidates


def table(name, candidates):
    from ridgeline.measure.statistics.order_statistics import quantile

    lines = [f"## {name}", "", "| candidate | agreement | P50 b1 | P99 b1 | P50 b8 | calls b1 |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for one in sorted(candidates, key=lambda one: one.median(1)):
        times = [time for times in one.times[1] for time in times]
        p99 = quantile(times, 0.99).seconds
        lines.append(
            f"| {one.kind} | {one.agreement:.1%} | {1e3 * one.median(1):.2f} ms |"
            f" {1e3 * p99:.2f} ms | {1e3 * one.median(8):.1f} ms | {len(times)} |"
        )
    for batch in BATCHES:
        best = {
            ours: min(
                (one for one in candidates if one.kind.startswith("export ") == ours),
                key=lambda one: one.median(batch),
            )
            for ours in (True, False)
        }
        ratio = best[True].median(batch) / best[False].median(batch)
        lines.append(
            f"\nBatch {batch}: {best[True].kind} takes {ratio:.3f} × the time of the best by hand,"
            f" {best[False].kind}."
        )
    return [*lines, ""]


def processor():
    from ridgeline.hardware.machine import this_machine

    return this_machine().cpu.model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0, help="of calls, all models together")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--write", action="store_true", help="replace the page of results")
    options = parser.parse_args()
    if importlib.util.find_spec("timm") is None:
        parser.exit(2, "timm gives the models: pip install --no-deps timm torchvision\n")
    lines = ["# Inference runtimes, by hand and by `ridgeline export`", ""]
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "onnxruntime", "openvino")]
    where_and_with = (
        f"`bench/vision_vs_peers.py`, {time.strftime('%Y-%m-%d')}, {processor()},"
        f" {os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads, {', '.join(versions)};"
        f" {ROUNDS} rounds in turns, 224²."
    )
    lines += [where_and_with, ""]
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        for name in options.models:
            prepare_command = ["--prepare", where, name, str(options.images)]
            subprocess.run([sys.executable, __file__, *prepare_command], check=True)
            seconds = 60 * options.minutes / len(options.models)
            lines += table(name, judge(folder, name, seconds))
    if options.write:
        RESULTS.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--prepare"]:
        prepare(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        main()
