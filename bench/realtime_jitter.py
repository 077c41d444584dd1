"""What makes the frames of a small CPU stage uneven, and how much of it `--steady` takes away.

    python bench/realtime_jitter.py
    python bench/realtime_jitter.py --frames 90 --rounds 1 --arms default steady
    python bench/realtime_jitter.py --co-runners 0

A stage of 1.5 ms runs every 33 ms and leaves reference cycles behind, some of which live on for
two seconds, beside 200,000 objects that live for good (what a program that has loaded torch holds).
As many busy co-runners as there are cores share the machine, as a logger and a driver monitor do in
a car. Every arm is a process of its own; a round runs all arms, one after the other, and rounds are
repeated. The rows in between take one measure by hand, so that one sees which does what. What is
asked of `steady` is the quotient of P99/P50: default over steady, of the same round.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.steady import SteadyProcess

ARMS = ("default", "pinned", "pinned, gc off", "pinned, fifo", "steady")
PERIOD, WORK, WARM_UP = 0.033, 1.5e-3, 30
LIVING, CYCLES, HISTORY = 200_000, 1_500, 60
BUSY = """
import os
import numpy as np
parent = os.getppid()
block = np.zeros(4 << 20, np.uint8)
while os.getppid() == parent:
    for _ in range(20):
        block += 1
        sum(range(20_000))
"""


def made_for(seconds: float) -> int:
    """How many passes of the stage's loop take so long here, undisturbed at best."""
    best = min(timed(one_pass, 20) for _ in range(20)) / 20
    return max(1, round(seconds / best))


def timed(call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - start


IMAGE = np.random.default_rng(0).random((64, 64), dtype=np.float32)


def one_pass() -> float:
    """Part of a stage: fresh arrays, and some Python."""
    blurred = IMAGE[1:] + IMAGE[:-1]
    return float(blurred.sum()) + sum(range(200))


def litter(history: deque) -> None:
    """Reference cycles, as trackers and frames that know each other make them."""
    cycles = []
    for _ in range(CYCLES):
        node: dict = {}
        node["self"] = node
        cycles.append(node)
    history.append(cycles[: CYCLES // 10])


def by_hand(arm: str) -> None:
    """The measure of one row, without Ridgeline."""
    if "pinned" in arm:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if "gc off" in arm:
        gc.disable()
    if "fifo" in arm:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


def small_pipeline(passes: int) -> Pipeline:
    """A camera and its one stage."""
    history: deque = deque(maxlen=HISTORY)

    def detect(_image: int) -> int:
        litter(history)
        for _ in range(passes):
            one_pass()
        return passes

    pipeline = Pipeline("jitter", deadline=PERIOD)
    camera = pipeline.sensor("camera", lambda number: number, rate=1 / PERIOD)
    pipeline.stage("detect", detect, camera)
    return pipeline


def one_arm(arm: str, frames: int, passes: int, executor: str) -> dict:
    """One process: seconds per call of the stage, and how late each frame was read."""
    living = [{"at": [number]} for number in range(LIVING // 2)]  # two objects each
    steady = SteadyProcess() if arm == "steady" else None
    by_hand(arm)
    run = execute(
        small_pipeline(passes), executor=executor, frames=frames, warmup=WARM_UP, steady=steady
    )
    assert len(living) == LIVING // 2
    (calls,), (fates,) = run.calls, run.fates
    took = [end - start for start, end in zip(calls.started, calls.ended, strict=True)]
    late = [read - due for due, read in zip(fates.stamps, fates.arrived, strict=True)]
    return {
        "took": took[WARM_UP:],
        "late": late[WARM_UP:],
        "measures": [(one.name, one.granted, one.detail) for one in run.steady],
    }


@contextlib.contextmanager
def co_runners(number: int) -> Iterator[None]:
    """Busy processes beside us; each ends with us, however we end."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_arm(arm: str, given: argparse.Namespace, passes: int) -> dict:
    words = [sys.executable, __file__, "--arm", arm, "--passes", passes,
             "--frames", given.frames, "--executor", given.executor]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True, env=environment
    )
    return json.loads(done.stdout)


def summary(found: dict) -> dict:
    p50, p99 = (float(value) for value in np.quantile(found["took"], (0.5, 0.99)))
    return {
        "p50": p50,
        "p99": p99,
        "worst": max(found["took"]),
        "ratio": p99 / p50,
        "late": float(np.quantile(found["late"], 0.99)),
    }


def show(rows: dict, rounds: int) -> None:
    print(f"{'set-up':18}{'p50':>9}{'p99':>9}{'worst':>9}{'P99/P50':>9}{'late p99':>10}   ms")
    for arm, found in rows.items():
        middle = {key: median(one[key] for one in found) for key in found[0]}
        print(
            f"{arm:18}{middle['p50'] * 1e3:9.2f}{middle['p99'] * 1e3:9.2f}"
            f"{max(one['worst'] for one in found) * 1e3:9.2f}{middle['ratio']:9.2f}"
            f"{middle['late'] * 1e3:10.2f}"
        )
    print(f"medians of {rounds} rounds, worst of all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--frames", type=int, default=450)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--co-runners", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--executor", choices=("inline", "threads", "processes"), default="inline")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--passes", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.arm:
        print(json.dumps(one_arm(given.arm, given.frames, given.passes, given.executor)))
        return
    passes = made_for(WORK)
    rows: dict[str, list[dict]] = {arm: [] for arm in given.arms}
    measures = []
    with co_runners(given.co_runners):
        for number in range(given.rounds):
            order = given.arms if number % 2 == 0 else given.arms[::-1]
            for arm in order:
                found = run_arm(arm, given, passes)
                rows[arm].append(summary(found))
                measures = found["measures"] or measures
    print(f"{platform.machine()}, Python {platform.python_version()}, "
          f"{len(os.sched_getaffinity(0))} cores, {given.co_runners} co-runners")  # fmt: skip
    show(rows, given.rounds)
    for name, granted, detail in measures:
        print(f"  {'✓' if granted else '✗'} {name}: {detail}")
    if {"default", "steady"} <= rows.keys():
        pairs = zip(rows["default"], rows["steady"], strict=True)
        cuts = sorted(one["ratio"] / other["ratio"] for one, other in pairs)
        print(f"P99/P50, default over steady, per round: {', '.join(f'{c:.1f} ×' for c in cuts)}; "
              f"median {median(cuts):.1f} × (asked for: 4 ×)")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
