"""Static stages are recorded once and replayed on fixed inputs: with a CPU twin of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.steady import SteadyProcess, Upload
from ridgeline.realtime.steady.buffers import FixedInputs
from ridgeline.realtime.steady.cuda_graphs import (
    WARM_UPS,
    CudaRecorder,
    GraphRecorder,
    RecordedStage,
    gpu_of,
)

CPU = torch.device("cpu")


class CpuTwin:
    """Does what a CUDA graph does: the same work on the same addresses, outputs overwritten."""

    def __init__(self) -> None:
        self.replays = 0

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        outputs = run()

        @torch.no_grad()
        def replay() -> None:
            self.replays += 1
            for kept, new in zip(tree_leaves(outputs), tree_leaves(run()), strict=True):
                kept.copy_(new)

        return outputs, replay


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, frame: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, Any]:
        scores = self.layer(frame["features"]) * scale
        return {"scores": scores, "boxes": [scores[:, :2] + 1]}


def frame(number: int, rows: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {"features": torch.randn(rows, 4, generator=generator)}


def recorded(module: nn.Module, recorder: GraphRecorder | None = None) -> RecordedStage:
    return RecordedStage("detect", module.eval(), CPU, recorder or CpuTwin())


def test_replays_give_what_calls_gave_and_frames_keep_their_results() -> None:
    module, twin = Heads(), CpuTwin()
    stage = recorded(module, twin)
    results = [stage(frame(number), 2.0) for number in range(20)]
    assert stage.recorded
    assert twin.replays == 20 - WARM_UPS + 1
    with torch.no_grad():
        for number, result in enumerate(results):
            expected = module(frame(number), 2.0)
            torch.testing.assert_close(result["scores"], expected["scores"])
            torch.testing.assert_close(result["boxes"][0], expected["boxes"][0])
    assert not results[-1]["scores"].requires_grad


def test_a_frame_of_another_shape_or_constant_is_called_and_counted() -> None:
    module = Heads()
    stage = recorded(module)
    for number in range(5):
        stage(frame(number))
    with torch.no_grad():
        for other in ((frame(7, rows=6),), (frame(7), 3.0), ({"features": [1, 2]},)):
            if "features" in other[0] and isinstance(other[0]["features"], list):
                with pytest.raises(TypeError):
                    stage(*other)
                continue
            torch.testing.assert_close(stage(*other)["scores"], module(*other)["scores"])
        torch.testing.assert_close(stage(frame(8))["scores"], module(frame(8))["scores"])
    assert "3 frames of other shapes called" in stage.said


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return frame * self.seen


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = torch.zeros(3)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        self.before = frame + self.before
        return self.before


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(frame, alpha=0.1)
        return self.mean.clone()


@pytest.mark.parametrize(
    ("kind", "named"),
    [(Counting, "self.seen"), (Remembering, "self.before"), (Averaging, "self.mean")],
)
def test_a_stage_with_a_memory_is_called_as_before(kind: type[nn.Module], named: str) -> None:
    stage, alone = recorded(kind()), kind().eval()
    for number in range(8):
        image = torch.full((3,), float(number))
        assert torch.equal(stage(image), alone(image))
    assert not stage.recorded
    assert named in stage.said


class Noisy(nn.Module):
    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        return frame + torch.rand(3)


def test_a_replay_that_gives_other_numbers_is_not_used() -> None:
    stage = recorded(Noisy())
    for _ in range(5):
        stage(torch.zeros(3))
    assert not stage.recorded
    assert "other numbers" in stage.said


class RefusingRecorder:
    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_a_stage_that_cannot_be_recorded_runs_and_says_why() -> None:
    module = nn.Linear(4, 2)
    stage = recorded(module, RefusingRecorder())
    image = torch.ones(1, 4)
    for _ in range(5):
        assert torch.equal(stage(image), module(image))
    assert stage.said.endswith("called as before: operation not permitted when stream is capturing")


def test_inputs_that_are_no_tensors_or_constants_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="an input is a object"):
        FixedInputs((torch.zeros(1), object()), CPU)


def test_arrays_and_tensors_keep_their_addresses() -> None:
    fixed = FixedInputs((np.zeros((2, 3), np.float32), [torch.ones(4)], "near"), CPU)
    addresses = [fixed.values[0].data_ptr(), fixed.values[1][0].data_ptr()]
    assert fixed.fill((np.full((2, 3), 7, np.float32), [torch.full((4,), 3.0)], "near"))
    assert [fixed.values[0].data_ptr(), fixed.values[1][0].data_ptr()] == addresses
    assert (float(fixed.values[0].sum()), float(fixed.values[1][0].sum())) == (42.0, 12.0)
    assert not fixed.fill((np.zeros((2, 3), np.float64), [torch.ones(4)], "near"))
    assert not fixed.fill((np.zeros((2, 3), np.float32), [torch.ones(4)], "far"))
    assert not fixed.fill((np.zeros((2, 3), np.float32), [], "near"))
    assert float(fixed.values[0].sum()) == 42.0


def test_only_an_evaluating_module_on_one_gpu_can_be_recorded() -> None:
    assert gpu_of(len) is None
    assert gpu_of(nn.Linear(1, 1)) is None
    assert gpu_of(nn.Linear(1, 1).eval()) is None
    assert gpu_of(nn.ReLU().eval()) is None


def test_a_pipeline_without_a_gpu_is_prepared_as_it_is() -> None:
    pipeline = Pipeline("cameras")
    camera = pipeline.sensor("camera", lambda _: torch.ones(4), rate=30.0)
    pipeline.stage("detect", nn.Linear(4, 2).eval(), camera)
    steady = SteadyProcess()
    assert steady.prepare(pipeline) is pipeline
    assert "cuda graphs" not in {one.name for one in steady.measures}


def test_an_upload_leaves_the_frames_before_it_alone() -> None:
    upload = Upload("cpu")
    frames = [{"image": np.full((2, 2), number, np.uint8), "id": number} for number in range(5)]
    moved = [upload(one) for one in frames]
    for number, one in enumerate(moved):
        assert one["id"] == number
        assert torch.equal(one["image"], torch.full((2, 2), number, dtype=torch.uint8))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_replays_a_stage_of_a_pipeline() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval().cuda()
    pipeline = Pipeline("cameras")
    camera = pipeline.sensor("camera", lambda _: None, rate=30.0)
    upload = pipeline.stage("upload", Upload("cuda"), camera)
    pipeline.stage("backbone", module, upload)
    steady = SteadyProcess()
    prepared = steady.prepare(pipeline)
    stage = prepared.code["backbone"].call
    send = prepared.code["upload"].call
    images = [np.random.default_rng(n).random((1, 3, 32, 32), np.float32) for n in range(10)]
    results = [stage(send(image)) for image in images]
    assert stage.recorded, stage.said
    assert isinstance(stage._recorder, CudaRecorder)
    with torch.no_grad():
        for image, result in zip(images, results, strict=True):
            expected = module(torch.from_numpy(image).cuda())
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
