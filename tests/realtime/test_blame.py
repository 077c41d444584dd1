"""What blame says of runs that are written by hand, where the machine cannot make the fault."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ridgeline.realtime.blame import blame, count_causes
from ridgeline.records.pipeline_shape import (
    EdgeShape,
    PipelineShape,
    SensorShape,
    StageShape,
)
from ridgeline.records.realtime_blame import MissCause
from ridgeline.records.realtime_run import (
    Collection,
    FrameFates,
    Interference,
    RealtimeRun,
    StageCalls,
    SteadyMeasure,
    WaitSample,
)

PERIOD = 0.033
DEADLINE = 0.025
STRUCK = 7
FRAMES = 12
SHAPE = PipelineShape(
    name="by hand",
    deadline_seconds=DEADLINE,
    sensors=(SensorShape(name="camera", rate_hz=1 / PERIOD),),
    stages=(
        StageShape(name="backbone", inputs=(EdgeShape(source="camera"),)),
        StageShape(name="detect", inputs=(EdgeShape(source="backbone"),)),
    ),
)


def calls(
    stage: str, start: float, usual: float, longer: float = 0.0, **columns: Any
) -> StageCalls:
    """A stage's calls, each `start` after its frame's stamp; that of the struck frame is longer.

    Columns are zero but where they are given as (usual, struck).
    """
    begins = [frame * PERIOD + start for frame in range(FRAMES)]
    lengths = [usual + (longer if frame == STRUCK else 0.0) for frame in range(FRAMES)]
    given = {"cpu_seconds": (usual, usual), "slowdowns": (1.0, 1.0), "switches": (0, 1), **columns}
    names = ("core_wait_seconds", "wake_wait_seconds", "collecting_seconds", "page_faults",
             "major_faults", "switches", "cores", "slowdowns", "cpu_seconds")  # fmt: skip
    return StageCalls(
        stage=stage,
        frames=list(range(FRAMES)),
        ready=begins,
        started=begins,
        ended=[begin + length for begin, length in zip(begins, lengths, strict=True)],
        modes=["run"] * FRAMES,
        **{
            name: [given.get(name, (0, 0))[frame == STRUCK] for frame in range(FRAMES)]
            for name in names
        },
    )


def run_of(*stages: StageCalls, fates: dict[str, Any] | None = None, **parts: Any) -> RealtimeRun:
    """A run of these calls; frames come out when the last stage ends."""
    ended = stages[-1].ended
    stamps = [frame * PERIOD for frame in range(FRAMES)]
    late = [end - stamp > DEADLINE for end, stamp in zip(ended, stamps, strict=True)]
    table = FrameFates(
        sensor="camera",
        sink="detect",
        frames=list(range(FRAMES)),
        stamps=stamps,
        arrived=stamps,
        ended=list(ended),
        kinds=["late" if one else "delivered" for one in late],
        places=[""] * FRAMES,
        reasons=[""] * FRAMES,
    )
    return RealtimeRun(
        **{
            "shape": SHAPE,
            "executor": "threads",
            "seconds": FRAMES * PERIOD,
            "calls": list(stages),
            "fates": [msgspec.structs.replace(table, **(fates or {}))],
            **parts,
        }
    )


def struck_backbone(**columns: Any) -> tuple[StageCalls, StageCalls]:
    """A backbone that takes 30 ms longer once, and a detector that starts when it ends."""
    backbone = calls("backbone", 0.0, 0.008, 0.030, **columns)
    detect = msgspec.structs.replace(
        calls("detect", 0.008, 0.004),
        ready=backbone.ended,
        started=backbone.ended,
        ended=[end + 0.004 for end in backbone.ended],
    )
    return backbone, detect


def only(run: RealtimeRun) -> MissCause:
    """The one miss of a run."""
    (miss,) = blame(run)
    return miss


def test_a_slower_clock_is_named_by_the_fixed_work_beside_the_call() -> None:
    miss = only(run_of(*struck_backbone(cpu_seconds=(0.008, 0.038), slowdowns=(1.0, 4.75))))
    assert (miss.place, miss.kind) == ("backbone", "lower clock")
    assert "4.75 times" in miss.evidence


def test_the_same_cpu_time_at_full_clock_is_more_work() -> None:
    miss = only(run_of(*struck_backbone(cpu_seconds=(0.008, 0.038))))
    assert (miss.place, miss.kind) == ("backbone", "more work")
    assert miss.confidence > 0.9


def hog(core: int, kind: str = "process") -> Interference:
    at = STRUCK * PERIOD
    return Interference(
        started=at - 0.1, ended=at + 0.1, process=f"hog ({core})", cpu_seconds=0.15, core=core,
        kind=kind,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_wait_for_a_core_names_who_was_on_that_core() -> None:
    run = run_of(
        *struck_backbone(core_wait_seconds=(0.0, 0.030), cores=(1, 1)),
        interference=[hog(0), hog(1)],
    )
    miss = only(run)
    assert (miss.kind, miss.co_runner) == ("waiting for a core", "hog (1)")


def test_a_real_time_stage_that_waits_for_an_ordinary_process_was_throttled() -> None:
    run = run_of(
        *struck_backbone(core_wait_seconds=(0.0, 0.030)),
        interference=[hog(0)],
        steady=[SteadyMeasure(name="fifo", granted=True, detail="")],
    )
    assert only(run).kind == "throttle"


def test_a_used_up_quota_is_a_throttle_whatever_the_priority() -> None:
    run = run_of(
        *struck_backbone(core_wait_seconds=(0.0, 0.030)), interference=[hog(0, kind="quota")]
    )
    assert only(run).kind == "throttle"


def test_a_call_that_neither_ran_nor_waited_lost_its_core_to_the_hypervisor() -> None:
    miss = only(run_of(*struck_backbone(switches=(0, 0))))
    assert (miss.kind, miss.co_runner) == ("waiting for a core", "the hypervisor")


def test_pages_from_a_disk_are_page_faults() -> None:
    at = STRUCK * PERIOD + 0.02
    run = run_of(
        *struck_backbone(major_faults=(0, 12)),
        waits=[WaitSample(at_seconds=at, stage="backbone", state="disk")],
    )
    assert only(run).kind == "page faults"


def test_a_collection_of_another_thread_is_blamed_on_that_thread() -> None:
    at = STRUCK * PERIOD
    collection = Collection(started=at + 0.004, ended=at + 0.034, generation=2, thread="detect")
    miss = only(run_of(*struck_backbone(), collections=[collection]))
    assert (miss.place, miss.kind, miss.co_runner) == (
        "backbone",
        "garbage collection",
        "stage detect",
    )


def test_a_frame_behind_a_slow_one_names_the_slow_frame() -> None:
    backbone = calls("backbone", 0.0, 0.008, 0.050, cpu_seconds=(0.008, 0.058))
    late = backbone.ended[STRUCK]
    started, ended = list(backbone.started), list(backbone.ended)
    started[STRUCK + 1], ended[STRUCK + 1] = late, late + 0.008
    backbone = msgspec.structs.replace(backbone, started=started, ended=ended)
    detect = msgspec.structs.replace(
        calls("detect", 0.0, 0.004), ready=ended, started=ended, ended=[e + 0.004 for e in ended]
    )
    first, second = blame(run_of(backbone, detect))
    assert (first.behind, second.behind) == (None, STRUCK)
    assert (second.frame, second.place, second.kind) == (STRUCK + 1, "backbone", "more work")


def test_a_way_that_is_always_too_long_is_too_slow_and_names_its_longest_stage() -> None:
    backbone = calls("backbone", 0.0, 0.020)
    detect = msgspec.structs.replace(
        calls("detect", 0.020, 0.008),
        ready=backbone.ended,
        started=backbone.ended,
        ended=[end + 0.008 for end in backbone.ended],
    )
    misses = blame(run_of(backbone, detect))
    assert {(miss.place, miss.kind) for miss in misses} == {("backbone", "too slow")}
    assert len(misses) == FRAMES


def test_a_stricter_deadline_judges_anew() -> None:
    run = run_of(*struck_backbone())
    assert len(blame(run)) == 1
    assert len(blame(run, deadline_seconds=0.011)) == FRAMES
    assert not blame(run, deadline_seconds=0.5)


def test_warm_up_frames_are_not_blamed() -> None:
    assert not blame(run_of(*struck_backbone(), warmup_frames=STRUCK + 1))


def test_without_observations_the_stage_is_named_and_the_kind_left_open() -> None:
    backbone, detect = struck_backbone()
    plain = msgspec.structs.replace(backbone, cpu_seconds=[], core_wait_seconds=[])
    miss = only(run_of(plain, detect))
    assert (miss.place, miss.kind) == ("backbone", "not known")


def test_after_a_death_frames_wait_for_the_restart() -> None:
    backbone, detect = struck_backbone()
    at = STRUCK * PERIOD
    death = {
        "kinds": ["delivered"] * (STRUCK - 1) + ["failed", "late"] + ["delivered"] * 4,
        "places": [""] * (STRUCK - 1) + ["backbone", ""] + [""] * 4,
        "reasons": [""] * (STRUCK - 1) + ["its process died (SIGKILL)", ""] + [""] * 4,
        "ended": [*backbone.ended[: STRUCK - 1], at - 0.02, *detect.ended[STRUCK:]],
    }
    started = list(backbone.started)
    started[STRUCK] = at + 0.030
    waited = msgspec.structs.replace(backbone, started=started)
    died, restarted = blame(run_of(waited, detect, fates=death))
    assert (died.kind, restarted.kind) == ("died", "restart")
    assert died.place == restarted.place == "backbone"


@pytest.mark.parametrize("reason", ["oldest", "full"])
def test_a_full_edge_is_blamed_on_the_slow_call_behind_it(reason: str) -> None:
    at = STRUCK * PERIOD + 0.036
    backbone, detect = struck_backbone(cpu_seconds=(0.008, 0.038))
    lost = {
        "kinds": ["delivered"] * (STRUCK + 1) + ["dropped"] + ["delivered"] * 3,
        "places": [""] * (STRUCK + 1) + ["camera -> backbone"] + [""] * 3,
        "reasons": [""] * (STRUCK + 1) + [reason] + [""] * 3,
        "ended": [*detect.ended[: STRUCK + 1], at, *detect.ended[STRUCK + 2 :]],
    }
    miss = only(run_of(backbone, detect, fates=lost))
    assert (miss.fate, miss.place, miss.kind) == ("dropped", "backbone", "more work")
    assert miss.behind == STRUCK


def test_causes_are_counted_with_their_cure_and_who_was_there_most_often() -> None:
    run = run_of(*struck_backbone(core_wait_seconds=(0.0, 0.030)), interference=[hog(0)])
    (count,) = count_causes(blame(run))
    assert (count.misses, count.share, count.co_runner) == (1, 1.0, "hog (0)")
    assert "move hog (0) away" in count.cure
    assert count.worst_excess_seconds == pytest.approx(0.030)
