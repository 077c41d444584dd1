"""Runs as a pipeline of three stages would leave them, written down without running one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.records.pipeline_shape import (
    EdgePolicy,
    EdgeShape,
    PathBudget,
    PipelineShape,
    SensorShape,
    StageShape,
)
from ridgeline.records.realtime_run import FateKind, FrameFates, RealtimeRun, StageCalls

PERIOD = 0.04
STAGES = {"backbone": 0.010, "detect": 0.005, "plan": 0.001}
"""Stage → its usual seconds."""


def shape(
    deadline: float | None = 0.033, rate: float | None = 25.0, policy: EdgePolicy = "drop-oldest"
) -> PipelineShape:
    """camera → backbone → detect → plan."""
    names = list(STAGES)
    return PipelineShape(
        name="front camera",
        deadline_seconds=deadline,
        sensors=(SensorShape(name="camera", rate_hz=rate),),
        stages=tuple(
            StageShape(
                name=name,
                inputs=(EdgeShape(source=before, policy=policy),),
                budget_seconds=0.012 if name == "backbone" else None,
            )
            for before, name in zip(["camera", *names], names, strict=False)
        ),
        paths=(PathBudget(sensor="camera", stage="detect", budget_seconds=0.020),),
    )


def recorded_run(
    frames: int,
    *,
    slow: Mapping[int, float] = {},
    dropped: Sequence[int] = (),
    failed: Sequence[int] = (),
    deadline: float | None = 0.033,
    warmup: int = 0,
    rate: float | None = 25.0,
) -> RealtimeRun:
    """A run in which `detect` took longer on some frames, and others were lost.

    Args:
        frames: All that the camera sent, the warm-up among them.
        slow: Frame → the seconds by which `detect` took longer.
        dropped: Frames that a newer one pushed out before the backbone.
        failed: Frames on which the backbone raised.
        deadline: That the sinks hold the frames to.
        warmup: Leading frames that statistics leave out.
        rate: Declared for the camera.
    """
    columns: dict[str, dict[str, list[float]]] = {
        name: {"frames": [], "ready": [], "started": [], "ended": []} for name in STAGES
    }
    ended: list[float | None] = []
    kinds: list[FateKind] = []
    places: list[str] = []
    reasons: list[str] = []
    for frame in range(frames):
        at = frame * PERIOD
        if frame in dropped:
            fate: tuple[float, FateKind, str, str] = (
                at + PERIOD, "dropped", "camera -> backbone", "oldest")  # fmt: skip
        elif frame in failed:
            fate = (at + 0.002, "failed", "backbone", "raised ValueError: no boxes")
        else:
            now = at + 0.0002
            for name, usual in STAGES.items():
                seconds = usual * (1 + frame % 7 / 100)
                seconds += slow.get(frame, 0.0) if name == "detect" else 0.0
                columns[name]["frames"].append(frame)
                columns[name]["ready"].append(now)
                columns[name]["started"].append(now + 0.0001)
                now += 0.0001 + seconds
                columns[name]["ended"].append(now)
            late = deadline is not None and now - at > deadline
            fate = (now, "late", "detect", "too late") if late else (now, "delivered", "", "")
        ended.append(fate[0])
        kinds.append(fate[1])
        places.append(fate[2])
        reasons.append(fate[3])
    stamps = [frame * PERIOD for frame in range(frames)]
    return RealtimeRun(
        shape=shape(deadline, rate),
        executor="simulated",
        seconds=frames * PERIOD,
        warmup_frames=warmup,
        calls=[
            StageCalls(
                stage=name,
                frames=[int(frame) for frame in one["frames"]],
                ready=one["ready"],
                started=one["started"],
                ended=one["ended"],
                modes=["run"] * len(one["frames"]),
            )
            for name, one in columns.items()
        ],
        fates=[
            FrameFates(
                sensor="camera",
                sink="plan",
                frames=list(range(frames)),
                stamps=stamps,
                arrived=[stamp + 0.0002 for stamp in stamps],
                ended=ended,
                kinds=kinds,
                places=places,
                reasons=reasons,
            )
        ],
    )
