"""What an executor adds to a frame: six empty stages, beside a loop that is written by hand.

    python bench/realtime_overhead.py
    python bench/realtime_overhead.py --rounds 3 --arms inline threads "threads by hand"

The stages return what they are given, so all that a frame takes is the executor's own: edges,
joins, fates, clocks, hand-overs. Each frame goes alone, at a rate that leaves time between two;
what is counted is the time from its arrival until it leaves the last stage. By hand is a thread per
stage with a `queue.Queue` before each, which notes when each call began and ended. A round runs all
arms in turn, the next one in the opposite order, so that what else the machine does falls on all.
Ratios are of the same round, with the signed-rank interval, which takes six rounds or more.
"""

import argparse
import platform
import queue
import threading
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.realtime.execute import execute
from ridgeline.realtime.pipeline import Pipeline

STAGES, WARM_UP = 6, 50


def same(frame: int) -> int:
    """An empty stage."""
    return frame


def through(executor: str, frames: int, rate_hz: float, observe: bool) -> list[float]:
    """Ages of frames that Ridgeline hands from stage to stage, in seconds."""
    pipeline = Pipeline("empty")
    node = pipeline.sensor("camera", lambda number: number, rate=rate_hz)
    for number in range(STAGES):
        node = pipeline.stage(f"stage{number}", same, node)
    run = execute(pipeline, executor=executor, frames=frames, warmup=WARM_UP, observe=observe)
    (fates,) = run.fates
    return [ended - arrived for arrived, ended in zip(fates.arrived, fates.ended, strict=True)][
        WARM_UP:
    ]


def by_hand(_: str, frames: int, rate_hz: float, __: bool) -> list[float]:
    """The same from thread to thread, as one writes it without a library."""
    queues: list[queue.Queue] = [queue.Queue(2) for _ in range(STAGES)]
    calls: list[list[tuple[int, float, float]]] = [[] for _ in range(STAGES)]
    ages: list[float] = []

    def work(number: int) -> None:
        while (given := queues[number].get()) is not None:
            frame, stamp, value = given
            started = time.monotonic()
            value = same(value)
            ended = time.monotonic()
            calls[number].append((frame, started, ended))
            if number + 1 < STAGES:
                queues[number + 1].put((frame, stamp, value))
            else:
                ages.append(time.monotonic() - stamp)
        if number + 1 < STAGES:
            queues[number + 1].put(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(STAGES)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for frame in range(WARM_UP + frames):
        time.sleep(max(0.0, began + frame / rate_hz - time.monotonic()))
        queues[0].put((frame, time.monotonic(), frame))
    queues[0].put(None)
    for thread in threads:
        thread.join()
    return ages[WARM_UP:]


ARMS: dict[str, tuple[Callable[..., list[float]], str, bool]] = {
    "inline": (through, "inline", False),
    "inline, observed": (through, "inline", True),
    "threads by hand": (by_hand, "", False),
    "threads": (through, "threads", False),
    "threads, observed": (through, "threads", True),
    "processes": (through, "processes", False),
}
PAIRS = (("threads", "threads by hand"), ("inline", "threads by hand"))


def interval(values: list[float]) -> str:
    low, high = np.quantile(values, (0.1, 0.9))
    return f"{median(values) * 1e6:8.0f} ({low * 1e6:.0f}–{high * 1e6:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    given = parser.parse_args()
    p50: dict[str, list[float]] = {arm: [] for arm in given.arms}
    p99: dict[str, list[float]] = {arm: [] for arm in given.arms}
    for number in range(given.rounds):
        for arm in given.arms[:: 1 if number % 2 == 0 else -1]:
            call, executor, observed = ARMS[arm]
            ages = call(executor, given.frames, given.rate, observed)
            p50[arm].append(float(np.quantile(ages, 0.5)))
            p99[arm].append(float(np.quantile(ages, 0.99)))
    print(f"{platform.machine()}, Python {platform.python_version()}, {given.rounds} rounds of")
    print(f"{given.frames} frames at {given.rate:g} Hz; µs per frame, 10th–90th of the rounds")
    print(f"{'arm':20}{'P50':>22}{'P99':>22}")
    for arm in given.arms:
        print(f"{arm:20}{interval(p50[arm]):>22}{interval(p99[arm]):>22}")
    for arm, other in PAIRS:
        if {arm, other} <= p50.keys() and given.rounds > 1:
            for name, values in (("P50", p50), ("P99", p99)):
                found = ratio_interval(values[arm], values[other], 0.95)
                print(f"{arm} over {other}, {name}: {found.ratio:.2f}×"
                      f" [{found.low:.2f}, {found.high:.2f}]")  # fmt: skip


if __name__ == "__main__":
    main()
