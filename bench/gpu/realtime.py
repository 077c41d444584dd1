"""A camera pipeline on this machine's GPU at its frame rate: as written, and steadied.

    python bench/gpu/realtime.py [--rehearse]

Four stages from six cameras (6 x 3x256x704 bytes from the host) to boxes: a backbone, features
put into a bird's-eye grid by a scatter, a head over the grid, the best boxes picked on the GPU;
float16, random weights. `as written` copies from ordinary memory and calls each stage. `steady`
copies through pinned memory (`Upload`) and runs as `ridgeline realtime run --steady` does: CUDA
graphs, a stream and a thread per stage, garbage collected in slack. Arms take turns. The boxes of
both are compared before anything is printed; where they differ the exit code is 1. A frame's time
is from its arrival to its boxes; the host's time to enqueue it stands apart from the GPU's. Asked
for: P50 1.5 times less, P99/P50 at most 1.1. `--rehearse`: small images, also on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.steady import SteadyProcess, Upload
from ridgeline.records.realtime_run import RealtimeRun

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.float16 if DEVICE.type == "cuda" else torch.float32
TOLERANCE = 0.02
"""How far scores may part, relative to the largest: the scatter adds with atomics in float16."""
PERIOD_SECONDS = 1 / 30
CAMERAS = 6
WARM_UP = 30
BOXES = 100
IMAGES = 4
"""So many different frames, in turn."""
ARMS = ("as written", "steady")


@dataclass(frozen=True)
class Size:
    """How much is run."""

    height: int
    width: int
    channels: int
    blocks: int
    grid: int
    """Cells of the bird's-eye grid along each side."""
    frames: int
    rounds: int


FULL = Size(height=256, width=704, channels=64, blocks=4, grid=128, frames=150, rounds=2)
REHEARSAL = Size(height=32, width=64, channels=8, blocks=1, grid=16, frames=6, rounds=1)


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Backbone(nn.Module):
    """Bytes of all cameras → features at a sixteenth of the resolution."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [3, *(size.channels * 2**level for level in range(4))]
        self.levels = nn.Sequential(*(
            nn.Sequential(
                convolution(inputs, outputs, stride=2),
                *(convolution(outputs, outputs) for _ in range(size.blocks)),
            )
            for inputs, outputs in itertools.pairwise(widths)
        ))  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """(cameras, 3, H, W) uint8 → (cameras, C, H/16, W/16)."""
        return self.levels(images.to(DTYPE) / 255)


class BirdsEye(nn.Module):
    """Every feature is added to the cell of the grid that it looks at (Lift, Splat, Shoot)."""

    cells: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.grid = size.grid
        looks = CAMERAS * (size.height // 16) * (size.width // 16)
        draw = torch.Generator().manual_seed(1)
        self.register_buffer("cells", torch.randint(size.grid**2, (looks,), generator=draw))

    def forward(self, features: Tensor) -> Tensor:
        """(cameras, C, h, w) → (1, C, grid, grid)."""
        flat = features.permute(1, 0, 2, 3).flatten(1)
        grid = torch.zeros(len(flat), self.grid**2, dtype=flat.dtype, device=flat.device)
        return grid.index_add(1, self.cells, flat).reshape(1, -1, self.grid, self.grid)


class Head(nn.Module):
    """A score and a box of six numbers for every cell."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        wide = size.channels * 8
        self.layers = nn.Sequential(
            convolution(wide, 128), *(convolution(128, 128) for _ in range(4)), nn.Conv2d(128, 7, 1)
        )

    def forward(self, grid: Tensor) -> Tensor:
        """(1, C, grid, grid) → (1, 7, grid, grid)."""
        return self.layers(grid)


class Best(nn.Module):
    """The cells with the highest scores, as rows of score and box."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))  # says where the stage computes

    def forward(self, answers: Tensor) -> Tensor:
        """(1, 7, grid, grid) → (BOXES, 7)."""
        rows = answers[0].flatten(1).t()
        chosen = rows[:, 0].topk(BOXES).indices
        return rows[chosen]


def stages(size: Size) -> list[nn.Module]:
    """The four modules, with the same weights each time."""
    torch.manual_seed(0)
    made = [Backbone(size), BirdsEye(size), Head(size), Best()]
    return [one.eval().to(DEVICE, DTYPE).requires_grad_(requires_grad=False) for one in made]


def camera_frames(size: Size) -> Callable[[int], np.ndarray]:
    """Different frames in turn."""
    draw = np.random.default_rng(0)
    shape = (IMAGES, CAMERAS, 3, size.height, size.width)
    images = draw.integers(0, 256, shape, dtype=np.uint8)
    return lambda number: images[number % len(images)]


def pipeline_of(size: Size, arm: str) -> Pipeline:
    """Cameras → upload → backbone → grid → head → boxes."""

    def from_ordinary_memory(images: np.ndarray) -> Tensor:
        return torch.from_numpy(images).to(DEVICE)

    upload = from_ordinary_memory if arm == "as written" else Upload(DEVICE.type)
    pipeline = Pipeline("cameras", deadline=PERIOD_SECONDS)
    handed = pipeline.sensor("cameras", camera_frames(size), rate=1 / PERIOD_SECONDS)
    handed = pipeline.stage("upload", upload, handed, processor=DEVICE.type)
    for name, module in zip(("backbone", "grid", "head", "boxes"), stages(size), strict=True):
        handed = pipeline.stage(name, module, handed, processor=DEVICE.type)
    return pipeline


def run_arm(size: Size, arm: str) -> tuple[RealtimeRun, dict[int, Tensor]]:
    """One run, and the newest boxes of each different frame."""
    kept: dict[int, Tensor] = {}

    def keep(_sink: str, frame: int, boxes: object) -> None:
        if frame >= WARM_UP and isinstance(boxes, Tensor):
            kept[frame % IMAGES] = boxes.clone()

    with torch.no_grad():
        run = execute(
            pipeline_of(size, arm),
            executor="inline" if arm == "as written" else "threads",
            frames=size.frames, warmup=WARM_UP, on_result=keep,
            steady=SteadyProcess() if arm == "steady" else None,
        )  # fmt: skip
    return run, kept


def same_boxes(ours: dict[int, Tensor], theirs: dict[int, Tensor]) -> str:
    """Why the arms' answers differ; empty: they agree."""
    common = ours.keys() & theirs.keys()
    if not common:
        return f"boxes of frames {sorted(ours)} and {sorted(theirs)} came out"
    for frame in sorted(common):
        scores, others = (boxes[frame][:, 0].float().sort().values for boxes in (ours, theirs))
        scale, off = float(scores.abs().max()), float((scores - others).abs().max())
        if not off <= TOLERANCE * scale:
            return f"scores of frame {frame} part by {off:.3g} of {scale:.3g}"
    return ""


def seconds_of(run: RealtimeRun) -> np.ndarray:
    """From a frame's arrival to its boxes, of all frames after the warm-up that came out."""
    (fates,) = run.fates
    spans = zip(fates.arrived, fates.ended, fates.kinds, strict=True)
    return np.array([
        end - start
        for start, end, kind in itertools.islice(spans, WARM_UP, None)
        if end is not None and kind in ("delivered", "late")
    ])  # fmt: skip


def per_frame(run: RealtimeRun, column: str) -> float:
    """The median over frames of a column's seconds, summed over the stages; nan: not taken."""
    columns = [getattr(calls, column)[WARM_UP:] for calls in run.calls]
    if not all(columns):
        return float("nan")
    whole = min(len(column) for column in columns)
    return float(np.median(np.sum([column[:whole] for column in columns], axis=0)))


def table(size: Size) -> bool:
    """Print it; did both arms find the same boxes?"""
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    runs = {}
    for number in range(size.rounds):
        boxes = {}
        for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
            runs[arm], boxes[arm] = run_arm(size, arm)
            p50, p99 = np.quantile(seconds_of(runs[arm]), (0.5, 0.99))
            found[arm].append((float(p50), float(p99)))
        differ = same_boxes(boxes["as written"], boxes["steady"])
        if differ:
            print(f"**Wrong**: {differ}")
            return False
    print("| arm | P50 ms | P99 ms | P99/P50 | host ms | GPU ms |\n|---|---|---|---|---|---|")
    for arm, rounds in found.items():
        p50, p99 = (median(column) for column in zip(*rounds, strict=True))
        host, gpu = (per_frame(runs[arm], f"{kind}_seconds") for kind in ("enqueue", "gpu"))
        print(f"| {arm} | {1e3 * p50:.2f} | {1e3 * p99:.2f} | {p99 / p50:.2f} | {1e3 * host:.2f} "
              f"| {1e3 * gpu:.2f} |")  # fmt: skip
    pairs = zip(found["as written"], found["steady"], strict=True)
    faster = [before[0] / after[0] for before, after in pairs]
    print(f"\nP50, as written over steady, per round: {', '.join(f'{x:.2f}' for x in faster)} "
          "(asked for: 1.5)")  # fmt: skip
    for measure in runs["steady"].steady:
        print(f"- {'granted' if measure.granted else 'refused'}: {measure.name}, {measure.detail}")
    return True


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rehearse", action="store_true")
    rehearse = options.parse_args().rehearse
    if DEVICE.type != "cuda" and not rehearse:
        sys.exit("bench/gpu/realtime.py: PyTorch sees no GPU here; --rehearse runs small images")
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, a rehearsal"
    print(f"{name}, torch {torch.__version__}, {datetime.now(UTC).date()}\n")
    sys.exit(0 if table(REHEARSAL if rehearse else FULL) else 1)


if __name__ == "__main__":
    main()
