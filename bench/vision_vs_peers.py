"""Inference of vision models: `ridgeline export` beside the runtimes called by hand, in turns.

    OMP_NUM_THREADS=2 python bench/vision_vs_peers.py IMAGES --state DIR [--minutes 4] [--write]

IMAGES is a folder of photographs. ResNet-50, MobileNetV3-L, ViT-S/16 at 224², batch 1 and 8, with
random weights and BatchNorm statistics of the images (weights change no time, statistics keep the
activations finite). Each candidate has a process of its own, made before the rounds and called in
turns: torch eager, eager bfloat16 channels-last, torch.compile, the conversions written by hand as
their manuals say (`vision_by_hand.py`), and the files that `ridgeline export` wrote.

What was made and measured stays in DIR: the same command goes on where it was interrupted, and a
candidate that failed is tried again once its entry is deleted from DIR/MODEL.json. Whatever takes
longer than `--limit` seconds to be made or to answer is killed and has a row that says so, so that
all ends within `--minutes` and `--limit` for each of 22 things of a model; usual is a tenth of
that. `--write` replaces docs/results/vision_vs_peers.md. timm gives the three models (`pip install
--no-deps timm torchvision`).
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
import threading
import time
from importlib import metadata
from pathlib import Path

import vision_by_hand

RESULTS = Path(__file__).parents[1] / "docs/results/vision_vs_peers.md"
MODELS = {
    "resnet50": "resnet50",
    "mobilenetv3": "mobilenetv3_large_100",
    "vit-s": "vit_small_patch16_224",
}
EXPORTED = (
    ("aoti", "fp32"), ("onnx", "fp32"), ("openvino", "fp32"),
    ("onnx", "int8"), ("openvino", "bf16"), ("openvino", "int8"),
)  # fmt: skip
KINDS = (*vision_by_hand.KINDS, *(f"export {target} {precision}" for target, precision in EXPORTED))
BATCHES = (1, 8)
ROUNDS = 7
FOOT = """
Agreement is that of the largest output with eager float32, SQNR that of all outputs. Weights are
random, so the largest outputs lie close together, and 8 bits change many of them that trained
weights would keep: what rounding costs on real weights stands in
[quantising vision models](quantise_vision.md).
"""


def build(name, images):
    """The model in evaluation mode, its BatchNorm statistics those of the images."""
    import torch

    from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import

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


def judged(images):
    """Every second image, side by side in memory.

    A slice keeps the strides of the whole, and a package of AOTInductor reads as many images as
    it is given, one after the other, whatever the strides are.
    """
    return images[1::2][:64].contiguous()


def prepare(folder, name, images_folder):
    """In a process of its own: model, images and what eager answers."""
    import torch

    images = photographs(images_folder, 128)
    model = build(name, images[:32])
    with torch.no_grad():
        wanted = torch.cat([model(one) for one in judged(images).split(8)])
    torch.save(model.state_dict(), folder / f"{name}.weights.pt")
    torch.save({"images": images, "model": model, "wanted": wanted}, folder / f"{name}.partial")
    (folder / f"{name}.partial").rename(folder / f"{name}.pt")


def serve(folder, name, kind):
    """The process of one candidate: ready, then one answer for each round that is asked for."""
    import torch

    from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import

    let_torchvision_import()  # the pickled model brings timm, which imports it
    kept = torch.load(Path(folder) / f"{name}.pt", weights_only=False)
    images, model = kept["images"], kept["model"]
    if kind.startswith("export "):
        from ridgeline.runtimes import Artifact, runtime

        _, target, precision = kind.split()
        artifact = Artifact.read(Path(folder) / f"{name}-{precision}" / target)
        call = runtime(target).load(artifact, threads=torch.get_num_threads())
    else:
        call = vision_by_hand.by_hand(kind, model, images, tempfile.mkdtemp(dir=folder))
    with torch.inference_mode():
        said = torch.cat([first(call(one)) for one in judged(images).split(8)])
        wanted = kept["wanted"]
        noise = float((said - wanted).double().square().sum())
        signal_to_noise = float(wanted.double().square().sum()) / max(noise, 1e-30)
        agreement = float((said.argmax(1) == wanted.argmax(1)).double().mean())
        for batch in BATCHES:
            call(images[:batch])
        print(json.dumps({"agreement": agreement, "signal_to_noise": signal_to_noise}), flush=True)
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


# -- what is kept ----------------------------------------------------------------------------------


class Kept:
    """What is known of the candidates of one model, in a file that is replaced whole."""

    def __init__(self, folder, name):
        self.path = folder / f"{name}.json"
        self.rows = json.loads(self.path.read_text()) if self.path.exists() else {}

    def row(self, kind):
        """What is known of one candidate."""
        empty = {"times": {str(batch): [] for batch in BATCHES}}
        return self.rows.setdefault(kind, empty)

    def write(self):
        """Replace the file."""
        aside = self.path.with_suffix(".partial.json")
        aside.write_text(json.dumps(self.rows))
        aside.rename(self.path)

    def is_done(self, kind):
        """Whether nothing is left to measure of a candidate."""
        row = self.rows.get(kind, {})
        rounds = row.get("times", {}).values()
        return "failed" in row or (bool(rounds) and all(len(one) >= ROUNDS for one in rounds))


class Candidate:
    """One process that answers within a limit, or is killed."""

    def __init__(self, folder, name, kind, limit):
        self.kind, self.limit = kind, limit
        with tempfile.TemporaryFile(dir=folder) as said:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve", str(folder), name, kind],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
                start_new_session=True,
            )  # fmt: skip
            self.ready = self.answer(limit)
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
        self.why = "" if self.ready else self.why or (last or ["it said nothing"])[0]

    def answer(self, limit):
        """The next JSON line of the process; None where it ended or the limit passed."""
        self.why = ""
        watch = threading.Timer(limit, self.give_up)
        watch.start()
        line = next((one for one in self.process.stdout if one[:1] in "{["), None)
        watch.cancel()
        return None if line is None else json.loads(line)

    def give_up(self):
        """Kill it for taking too long."""
        self.why = f"no answer within {self.limit:.0f} s"
        self.end()

    def round(self, batch, seconds):
        """Call for so long; None where the process died."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([batch, seconds]) + "\n")
            self.process.stdin.flush()
        return self.answer(self.limit + seconds)

    def end(self):
        """Kill it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


# -- the run ---------------------------------------------------------------------------------------


def make(folder, name, images, limit):
    """The model, and what `ridgeline export` writes of it, unless they are there."""
    if not (folder / f"{name}.pt").exists():
        within([sys.executable, __file__, "--prepare", str(folder), name, str(images)], limit)
    for precision in dict.fromkeys(precision for _, precision in EXPORTED):
        out = folder / f"{name}-{precision}"
        if out.exists():
            continue
        print(f"{name}: ridgeline export, {precision}", file=sys.stderr, flush=True)
        targets = [target for target, one in EXPORTED if one == precision]
        command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", "export"]
        command += [f"timm:{MODELS[name]}", "--weights", f"{folder}/{name}.weights.pt"]
        command += [word for target in targets for word in ("--to", target)]
        command += ["--check", str(images), "--precision", precision, "--no-speed"]
        within([*command, "--fix", "size", "--out", str(out)], limit * len(targets))


def within(command, limit):
    """Run a command; one that takes longer is ended with everything that it started."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        print(f"not done within {limit:.0f} s: {' '.join(command[2:])}", file=sys.stderr)


def measure(folder, name, seconds, limit):
    """Call every candidate that is not done in turns, and keep each round as it ends."""
    kept, running = Kept(folder, name), []
    try:
        for kind in (one for one in KINDS if not kept.is_done(one)):
            print(f"{name}: {kind}", file=sys.stderr, flush=True)
            one = Candidate(folder, name, kind, limit)
            if one.ready is None:
                kept.row(kind)["failed"] = one.why
            else:
                kept.row(kind).update(one.ready)
                running.append(one)
            kept.write()
        each = seconds / len(KINDS) / ROUNDS / len(BATCHES)
        for number in range(ROUNDS):
            for batch in map(str, BATCHES):
                for one in running:
                    row = kept.row(one.kind)
                    if "failed" in row or len(row["times"][batch]) > number:
                        continue
                    times = one.round(int(batch), each)
                    if times is None:
                        row["failed"] = one.why or "it died while it was called"
                    else:
                        row["times"][batch].append(times)
            kept.write()
    finally:
        for one in running:
            one.end()
    return kept.rows


# -- the page --------------------------------------------------------------------------------------


def table(name, rows):
    from ridgeline.measure.statistics.order_statistics import quantile

    columns = "candidate", "agreement", "SQNR", "P50 b1", "P99 b1", "P50 b8", "calls b1"
    lines = [f"## {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    whole = {kind: row for kind, row in rows.items() if "failed" not in row}
    for kind, row in sorted(whole.items(), key=lambda one: median(one[1], 1)):
        times = [time for times in row["times"]["1"] for time in times]
        p99 = quantile(times, 0.99).seconds
        lines.append(
            f"| {kind} | {row['agreement']:.1%} | {decibels(row['signal_to_noise'])} |"
            f" {1e3 * median(row, 1):.2f} ms |"
            f" {1e3 * p99:.2f} ms | {1e3 * median(row, 8):.1f} ms | {len(times)} |"
        )
    for kind, row in rows.items():
        if "failed" in row:
            lines.append(f"| {kind} | {row['failed'].replace('|', '/')} | | | | | |")
    ours = {kind for kind in whole if kind.startswith("export ")}
    for batch in BATCHES if ours and ours != {*whole} else ():
        mine, hand = (
            min(some, key=lambda kind: median(whole[kind], batch))
            for some in (ours, {*whole} - ours)
        )
        ratio = median(whole[mine], batch) / median(whole[hand], batch)
        lines.append(
            f"\nBatch {batch}: {mine} takes {ratio:.3f} × the time of the best by hand, {hand}."
        )
    return [*lines, ""]


def median(row, batch):
    """Seconds of the middle call."""
    return statistics.median(time for times in row["times"][str(batch)] for time in times)


def decibels(ratio):
    import math

    return "exact" if ratio > 1e14 else f"{10 * math.log10(max(ratio, 1e-12)):.1f} dB"


def heading(state):
    """What ran where; the first run of a state folder says it for all."""
    path = state / "heading.txt"
    if not path.exists():
        from ridgeline.hardware.machine import this_machine

        names = ("torch", "onnxruntime", "openvino")
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
        path.write_text(
            f"`bench/vision_vs_peers.py`, {time.strftime('%Y-%m-%d')}, {this_machine().cpu.model},"
            f" {os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads, {versions};"
            f" {ROUNDS} rounds in turns, 224²."
        )
    return path.read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--state", type=Path, required=True, help="what is made and measured")
    parser.add_argument("--minutes", type=float, default=4.0, help="of calls, all models together")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each thing made")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--write", action="store_true", help="replace the page of results")
    options = parser.parse_args()
    if importlib.util.find_spec("timm") is None:
        parser.exit(2, "timm gives the models: pip install --no-deps timm torchvision\n")
    state = options.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(state / "cache")
    lines = ["# Inference runtimes, by hand and by `ridgeline export`", "", heading(state), ""]
    for name in options.models:
        make(state, name, options.images.resolve(), options.limit)
        seconds = 60 * options.minutes / len(options.models)
        lines += table(name, measure(state, name, seconds, options.limit))
    page = "\n".join(lines) + FOOT
    if options.write:
        RESULTS.write_text(page)
    print(page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--prepare"]:
        prepare(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        main()
