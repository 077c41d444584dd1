"""What the scheduler costs per step of decoding: `schedule` and `complete` together.

    python bench/scheduler_step.py
    python bench/scheduler_step.py --steps 2000 --json

One core, no model. Every sequence decodes one token per step; a block of 16 tokens is taken and
named (prefix cache) every 16 steps, at another step for each sequence. Where one ends, another is
admitted in its place: answers are 256 tokens, so with 256 running one comes and goes at each step.
"""

import argparse
import json
import platform
import time
from statistics import quantiles

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Request, Sequence

RUNNING = (1, 16, 64, 256, 1024)
PROMPT, ANSWER, BLOCK = 128, 256, 16


def request(number: int, answer: int) -> Sequence:
    prompt = tuple((number * 31 + i) % 50000 for i in range(PROMPT))
    return Sequence(
        request=Request(id=str(number), prompt=prompt, max_tokens=answer, arrival=0.0),
        tokens=list(prompt),
    )


def filled(running: int) -> Scheduler:
    """A scheduler in which `running` sequences decode, their ends spread evenly."""
    limits = Limits(max_tokens_per_step=max(2048, 2 * running), max_sequences=running)
    blocks = running * (-(-(PROMPT + ANSWER) // BLOCK)) * 2
    scheduler = Scheduler(limits, BlockCache(blocks, BLOCK))
    for number in range(running):
        scheduler.add(request(number, ANSWER * (number + 1) // running + 8), 0.0)
        if number % 512 == 511 or number == running - 1:
            while scheduler.waiting:
                one_step(scheduler)
    return scheduler


def one_step(scheduler: Scheduler) -> float:
    """Microseconds in the scheduler; the stand-in for the model is not counted."""
    start = time.perf_counter_ns()
    step = scheduler.schedule(0.0)
    between = time.perf_counter_ns()
    sampled = [[1] if one.samples else [] for one in step.slices]
    again = time.perf_counter_ns()
    scheduler.complete(step, sampled, 0.0)
    return (time.perf_counter_ns() - again + between - start) / 1000


def measured(running: int, steps: int) -> dict[str, float]:
    scheduler = filled(running)
    number = running
    times = []
    for _ in range(steps):
        while len(scheduler.running) + len(scheduler.waiting) < running:
            scheduler.add(request(number, ANSWER), 0.0)
            number += 1
        times.append(one_step(scheduler))
    scheduler.check()
    cuts = quantiles(times, n=100)
    return {"running": running, "p20": cuts[19], "p50": cuts[49], "p80": cuts[79], "p99": cuts[98]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measured(running, arguments.steps) for running in RUNNING]
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "microseconds_per_step": rows}))
        return
    print(f"Python {platform.python_version()}, {arguments.steps} steps each, µs per step")
    print(f"{'running':>8}{'p20':>9}{'p50':>9}{'p80':>9}{'p99':>9}")
    for row in rows:
        print(
            f"{row['running']:>8}"
            + "".join(f"{row[k]:>9.1f}" for k in ("p20", "p50", "p80", "p99"))
        )


if __name__ == "__main__":
    main()
