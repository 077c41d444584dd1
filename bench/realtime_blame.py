"""Judge blame: faults planted in real runs, and whether the misses they make get their names.

    python bench/realtime_blame.py                       every fault three times, one table
    python bench/realtime_blame.py --repeats 10 --only lock

Each fault strikes every tenth frame of a small pipeline (30 Hz, three stages, deadline 25 ms) whose
stages compute for some milliseconds. A run is judged by the frames that the fault struck: what most
of them are blamed on must be the stage and the kind that were planted (for waits also who was
named beside them). The last line is what the observers cost: CPU of the watching process, time of a
frame with and without them, from interleaved runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ridgeline.realtime.blame import blame
from ridgeline.realtime.execute import ExecutorName, execute
from ridgeline.realtime.pipeline import Pipeline, SensorReading
from ridgeline.records.realtime_blame import MissCause
from ridgeline.records.realtime_run import RealtimeRun

EVERY = 10
"""The fault strikes frames 9, 19, 29, …"""
STRUCK_SECONDS = 0.060
DEADLINE = "25ms"
RATE = "30Hz"
WARMUP = 5
HOG = "import time, sys; print(flush=True)\nwhile True: pass"


def strikes(frame: int) -> bool:
    """Whether the fault strikes this frame."""
    return frame % EVERY == EVERY - 1


def spin(seconds: float) -> None:
    """Compute for so long, of this thread's own CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(100))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """A fault, the pipeline that it is planted in, and what blame should say."""

    name: str
    make: Callable[[], Pipeline]
    place: str
    """A regular expression of the guilty stage, sensor or edge."""
    kinds: tuple[str, ...]
    beside: str = ""
    """A regular expression of the co-runner."""
    executor: ExecutorName = "inline"
    sink: str = "plan"
    before: int = 0
    reach: int = 2
    """The frames from so many before a struck one to so many after it are judged."""
    around: Callable[[], Any] | None = None
    """A context in which the run is made."""


def three_stages(
    *,
    read: Callable[[int], Any] = lambda frame: frame,
    backbone: Callable[[int], Any] | None = None,
    detect: Callable[[int], Any] | None = None,
    beside: Callable[[int], Any] | None = None,
    policy: str = "block",
) -> Pipeline:
    """A camera, a backbone, a detector, a planner; some have their code replaced."""

    def computes(seconds: float) -> Callable[[Any], Any]:
        def call(value: Any) -> Any:
            spin(seconds)
            return value

        return call

    pipeline = Pipeline("planted", deadline=DEADLINE)
    camera = pipeline.sensor("camera", read, rate=RATE)
    first = pipeline.stage("backbone", backbone or computes(0.003), camera)
    second = pipeline.stage("detect", detect or computes(0.002), first.via(policy))  # type: ignore[arg-type]
    pipeline.stage("plan", computes(0.001), second)
    if beside is not None:
        pipeline.stage("logger", beside, camera.via("latest-only"))
    return pipeline


def struck(fault: Callable[[], None], usual: float = 0.002) -> Callable[[int], int]:
    """A stage that computes for a moment, and runs into the fault when it strikes."""

    def call(frame: int) -> int:
        spin(usual)
        if strikes(frame):
            fault()
        return frame

    return call


def collecting() -> Callable[[], None]:
    """Full collections over a heap that lives, so that no fresh memory is touched meanwhile."""
    alive: list[list[object]] = [[] for _ in range(200_000)]

    def collect() -> None:
        until = time.thread_time() + STRUCK_SECONDS
        while time.thread_time() < until:
            ring = alive[0]
            ring[:] = [ring]
            gc.collect()

    return collect


def touch_fresh_memory() -> None:
    """Map memory and touch each page once."""
    until = time.thread_time() + STRUCK_SECONDS
    while time.thread_time() < until:
        pages = mmap.mmap(-1, 8 << 20)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages[:: mmap.PAGESIZE] = bytes(len(pages) // mmap.PAGESIZE)
        pages.close()


def hold_interpreter() -> None:
    """One long operation in C that does not let go of the interpreter's lock."""
    number = 3**60_000
    until = time.monotonic() + STRUCK_SECONDS
    while time.monotonic() < until:
        number * number % (number + 1)


def _killed() -> Pipeline:
    return three_stages(detect=struck(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def _locked() -> Pipeline:
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(STRUCK_SECONDS)

    def wants(frame: int) -> int:
        if strikes(frame):
            time.sleep(0.004)  # the other one comes first
        with lock:
            spin(0.002)
        return frame

    return three_stages(beside=struck(hold, usual=0.0), backbone=wants)


def _interpreter_held() -> Pipeline:
    def wants(frame: int) -> int:
        for _ in range(20):
            spin(0.0001)
            time.sleep(0.0001)
        return frame

    return three_stages(beside=struck(hold_interpreter, usual=0.0), backbone=wants)


def _raises() -> Pipeline:
    def fail() -> None:
        raise ValueError("no boxes")

    return three_stages(detect=struck(fail))


def _late_camera() -> Pipeline:
    def read(frame: int) -> int:
        if strikes(frame):
            time.sleep(STRUCK_SECONDS)
        return frame

    return three_stages(read=read)


def _camera(say: Callable[[int], SensorReading]) -> Callable[[], Pipeline]:
    return lambda: three_stages(read=lambda frame: say(frame) if strikes(frame) else frame)


def _stopped_lidar() -> Pipeline:
    def lidar(frame: int) -> int:
        if frame > 2 * EVERY:
            raise StopIteration
        return frame

    pipeline = Pipeline("planted", deadline=DEADLINE)
    camera = pipeline.sensor("camera", lambda frame: frame, rate=RATE)
    points = pipeline.sensor("lidar", lidar, rate=RATE)
    pipeline.stage("plan", lambda a, _b: a, camera, points, tolerance="5ms")
    return pipeline


def _overloaded() -> Pipeline:
    def slow(frame: int) -> int:
        spin(0.045)
        return frame

    return three_stages(detect=slow, policy="drop-oldest")


@contextmanager
def hog_on_one_core() -> Iterator[None]:
    """This process and eight that compute all the time, on one core; they come and go."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    os.sched_setaffinity(0, {core})
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(8)]
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.2):
            for hog in hogs:
                hog.send_signal(signal.SIGCONT)
            done.wait(0.1)
            for hog in hogs:
                hog.send_signal(signal.SIGSTOP)

    for hog in hogs:
        hog.send_signal(signal.SIGSTOP)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for hog in hogs:
            hog.kill()
            hog.wait()
        os.sched_setaffinity(0, allowed)


FAULTS = (
    PlantedFault(
        name="sleep in a stage",
        make=lambda: three_stages(detect=struck(lambda: time.sleep(STRUCK_SECONDS))),
        place="detect",
        kinds=("blocked",),
    ),
    PlantedFault(
        name="sleep in a stage's process",
        make=lambda: three_stages(detect=struck(lambda: time.sleep(STRUCK_SECONDS))),
        place="detect",
        kinds=("blocked",),
        executor="processes",
    ),
    PlantedFault(
        name="larger input",
        make=lambda: three_stages(detect=struck(lambda: spin(STRUCK_SECONDS))),
        place="detect",
        kinds=("more work",),
        executor="threads",
    ),
    PlantedFault(
        name="garbage",
        make=lambda: three_stages(detect=struck(collecting())),
        place="detect",
        kinds=("garbage collection",),
    ),
    PlantedFault(
        name="garbage in a stage's process",
        make=lambda: three_stages(detect=struck(collecting())),
        place="detect",
        kinds=("garbage collection",),
        executor="processes",
    ),
    PlantedFault(
        name="fresh memory",
        make=lambda: three_stages(backbone=struck(touch_fresh_memory)),
        place="backbone",
        kinds=("page faults",),
    ),
    PlantedFault(
        name="hog on its core",
        make=three_stages,
        place="backbone|detect|plan|camera",
        kinds=("waiting for a core",),
        beside=r"python",
        reach=EVERY,
        around=hog_on_one_core,
    ),
    PlantedFault(
        name="lock",
        make=_locked,
        place="backbone",
        kinds=("lock",),
        beside="stage logger",
        executor="threads",
    ),
    PlantedFault(
        name="interpreter's lock",
        make=_interpreter_held,
        place="backbone|detect|plan",
        kinds=("lock",),
        beside="stage logger",
        executor="threads",
    ),
    PlantedFault(
        name="late sensor",
        make=_late_camera,
        place="camera",
        kinds=("sensor late",),
        executor="threads",
    ),
    PlantedFault(
        name="late sensor, one thread", make=_late_camera, place="camera", kinds=("sensor late",)
    ),
    PlantedFault(
        name="repeated id",
        make=_camera(lambda frame: SensorReading(data=frame, frame=frame - 1)),
        place="camera",
        kinds=("repeated id",),
        before=1,
    ),
    PlantedFault(
        name="stamp from the future",
        make=_camera(lambda frame: SensorReading(data=frame, stamp=time.monotonic() + 1.0)),
        place="camera",
        kinds=("bad stamp",),
    ),
    PlantedFault(
        name="sensor that stops",
        make=_stopped_lidar,
        place="lidar",
        kinds=("sensor stopped", "no partner"),
        reach=EVERY,
    ),
    PlantedFault(
        name="stage that raises", make=_raises, place="detect", kinds=("raised",), reach=0
    ),
    PlantedFault(
        name="killed process",
        make=_killed,
        place="detect",
        kinds=("died", "restart"),
        executor="processes",
    ),
    PlantedFault(
        name="overload",
        make=_overloaded,
        place="detect",
        kinds=("queueing", "too slow"),
        executor="threads",
        reach=EVERY,
    ),
)


@dataclass(slots=True)
class Verdict:
    """What was said of one run with a fault."""

    right: bool
    said: Counter[str] = field(default_factory=Counter)
    named: int = 0
    misses: int = 0


def run_of(fault: PlantedFault, frames: int) -> RealtimeRun:
    """A run of the pipeline with the fault in it."""
    if fault.around is None:
        return execute(
            fault.make(), executor=fault.executor, frames=frames, warmup=WARMUP, observe=True
        )
    with fault.around():
        return execute(
            fault.make(), executor=fault.executor, frames=frames, warmup=WARMUP, observe=True
        )


def judge(fault: PlantedFault, run: RealtimeRun) -> Verdict:
    """Whether most misses of the frames that it struck are blamed on the fault."""
    ours = [
        miss
        for miss in blame(run)
        if miss.sink == fault.sink and miss.frame % EVERY in _struck_rests(fault)
    ]
    said = Counter(f"{miss.place}: {miss.kind} {miss.co_runner}".strip() for miss in ours)
    named = sum(is_named(fault, miss) for miss in ours)
    return Verdict(bool(ours) and 2 * named > len(ours), said, named, len(ours))


def is_named(fault: PlantedFault, miss: MissCause) -> bool:
    """Whether the cause of a miss is the one that was planted."""
    return (
        re.fullmatch(fault.place, miss.place) is not None
        and miss.kind in fault.kinds
        and (not fault.beside or re.search(fault.beside, miss.co_runner) is not None)
    )


def _struck_rests(fault: PlantedFault) -> set[int]:
    return {(EVERY - 1 + apart) % EVERY for apart in range(-fault.before, fault.reach + 1)}


def overhead(frames: int) -> tuple[float, float]:
    """Relative growth of a frame's median time by observing, and the watcher's share of a core."""
    plain: list[float] = []
    observed: list[float] = []
    watcher = seconds = 0.0
    for _ in range(3):
        for times, observe in ((plain, False), (observed, True)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run = execute(three_stages(), frames=frames, warmup=WARMUP, observe=observe)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if observe:
                watcher += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                seconds += run.seconds
            (fates,) = run.fates
            times += [
                ended - stamp
                for ended, stamp in zip(fates.ended, fates.stamps, strict=True)
                if ended is not None
            ]
    return median(observed) / median(plain) - 1.0, watcher / seconds


def main() -> None:
    """Run every fault and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--only", default="", help="a part of a fault's name")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for fault in FAULTS:
        if args.only not in fault.name:
            continue
        verdicts = [judge(fault, run_of(fault, args.frames)) for _ in range(args.repeats)]
        said = sum((verdict.said for verdict in verdicts), Counter())
        rows.append(
            {
                "fault": fault.name,
                "executor": fault.executor,
                "right": sum(verdict.right for verdict in verdicts),
                "runs": args.repeats,
                "misses_named": sum(verdict.named for verdict in verdicts),
                "misses": sum(verdict.misses for verdict in verdicts),
                "said": dict(said.most_common(3)),
            }
        )
        if not args.json:
            row = rows[-1]
            counts = (
                f"{row['right']}/{row['runs']} runs, {row['misses_named']}/{row['misses']} misses"
            )
            print(f"{fault.name:28} {fault.executor:10} {counts}  {row['said']}", flush=True)
    right, runs = sum(row["right"] for row in rows), sum(row["runs"] for row in rows)
    grown, share = overhead(args.frames)
    if args.json:
        print(json.dumps({"rows": rows, "right": right, "runs": runs,
                          "frame_grows": grown, "watcher_core_share": share}))  # fmt: skip
    else:
        print(f"named right: {right} of {runs} runs ({right / max(runs, 1):.0%})")
        print(f"observers: a frame takes {grown:+.1%}, the watcher {share:.1%} of a core")


if __name__ == "__main__":
    main()
