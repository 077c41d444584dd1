"""How well a run under one edge policy foretells runs under the others.

    OMP_NUM_THREADS=1 python bench/realtime_simulator.py
    OMP_NUM_THREADS=1 python bench/realtime_simulator.py --executor threads --kind computing

Four stages whose lengths drift from frame to frame (log-normal, AR(1)), run for real under `block`,
`drop-oldest` and `latest-only`; each run's samples then foretell all three. Waiting stages sleep,
as one does that waits for a GPU: what is judged is queueing. Computing stages use a core for their
whole time. Goals: P50 within 3 %, P99 within 15 %, misses within the larger of a point and 20 %,
an answer in less than a second. Each policy is run twice: how far two runs of the same lie apart is
the noise that no forecast can beat.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import get_args

import numpy as np

from ridgeline.plan.realtime.answer import SimulationSource, simulate_realtime
from ridgeline.plan.realtime.figures import sink_figures
from ridgeline.plan.realtime.run_samples import timing_of_run
from ridgeline.realtime.execute import ExecutorName, execute
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.records.pipeline_shape import EdgePolicy
from ridgeline.records.realtime_run import RealtimeRun
from ridgeline.records.realtime_simulation import SimulatedSink

POLICIES: tuple[EdgePolicy, ...] = ("block", "drop-oldest", "latest-only")
SHARES = {"preprocess": 0.15, "backbone": 0.5, "head": 0.25, "track": 0.1}
"""Stage → its part of all stages' time."""
SPREADS = {"preprocess": 0.1, "backbone": 0.35, "head": 0.2, "track": 0.5}


def lengths(seed: int, frames: int, mean: float, spread: float) -> list[float]:
    """Seconds of a stage's calls, frame by frame."""
    draws, state, found = np.random.default_rng(seed), 0.0, []
    for noise in draws.standard_normal(frames):
        state = 0.9 * state + math.sqrt(0.19) * noise
        found.append(mean * math.exp(spread * state - spread**2 / 2))
    return found


def stage_code(seconds: list[float], kind: str) -> Callable[[int], int]:
    """A stage that takes so long for each frame."""

    def wait(frame: int) -> int:
        time.sleep(seconds[frame])
        return frame

    def compute(frame: int) -> int:
        block = np.ones((200, 200), np.float32)
        end = time.thread_time() + seconds[frame]
        while time.thread_time() < end:
            block @ block
        return frame

    return wait if kind == "waiting" else compute


def pipeline(policy: EdgePolicy, asked: argparse.Namespace) -> Pipeline:
    """The four stages with this policy on every edge."""
    made = Pipeline(f"{asked.kind}, {policy}", deadline=1.6 / asked.rate)
    last = made.sensor("camera", lambda frame: frame, rate=asked.rate)
    total = asked.frames + asked.warmup
    for seed, (name, share) in enumerate(SHARES.items()):
        seconds = lengths(seed, total, share * asked.load / asked.rate, SPREADS[name])
        last = made.stage(name, stage_code(seconds, asked.kind), last.via(policy))
    return made


def row(name: str, found: SimulatedSink, real: SimulatedSink, took_seconds: float) -> str:
    """One forecast beside what came."""
    assert found.age
    assert real.age
    assert found.miss_share is not None
    assert real.miss_share is not None
    p50, p99 = found.age.p50 / real.age.p50 - 1.0, found.age.p99 / real.age.p99 - 1.0
    apart = found.miss_share - real.miss_share
    kept = abs(p50) <= 0.03 and abs(p99) <= 0.15
    kept = kept and abs(apart) <= max(0.01, 0.2 * real.miss_share)
    return (
        f"{name:28} p50 {p50:+7.1%}  p99 {p99:+7.1%}  misses {real.miss_share:6.1%}"
        f" {100 * apart:+6.1f} points  {took_seconds:5.2f} s  {'kept' if kept else 'broken'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", choices=get_args(ExecutorName), default="inline")
    parser.add_argument("--kind", choices=("waiting", "computing"), default="waiting")
    parser.add_argument("--load", type=float, default=0.95, help="of one thread for all stages")
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--warmup", type=int, default=10)
    asked = parser.parse_args()

    def run(policy: EdgePolicy) -> RealtimeRun:
        return execute(
            pipeline(policy, asked),
            executor=asked.executor,
            frames=asked.frames,
            warmup=asked.warmup,
        )

    firsts = {policy: run(policy) for policy in POLICIES}
    real = {policy: sink_figures(one)[0] for policy, one in firsts.items()}
    for policy in POLICIES:
        print(row(f"{policy}, run again", sink_figures(run(policy))[0], real[policy], 0.0))
    for measured, one in firsts.items():
        source = SimulationSource(timing=timing_of_run(one, measured), described=measured)
        for policy in POLICIES:
            answer = simulate_realtime(source, what_if=[f"policy={policy}"], frames=asked.frames)
            variant = answer.what_if[0]
            print(row(f"{measured} -> {policy}", variant.sinks[0], real[policy],
                      variant.answered_in_seconds))  # fmt: skip


if __name__ == "__main__":
    main()
