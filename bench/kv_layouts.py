"""What the layouts of the KV cache waste, and how many sequences run at once because of it.

    python bench/kv_layouts.py
    python bench/kv_layouts.py --trace ../shared/data/request_traces/azure2023_code.csv
    python bench/kv_layouts.py --trace mooncake.jsonl --cache-tokens 200000 --json

The scheduler that serves is driven without a model: all requests wait from the start, and the
steps in which somebody has to wait for memory are looked at. Every slot of the cache is then one of

    used         holds the KV of a token
    reserved     held for a token that will come
    never used   held, and no token will ever lie there
    free         held by nobody, too few or too scattered for the next request

which is how the PagedAttention paper (Kwon et al., 2309.06180) divides it, too. Without a trace,
lengths are drawn from log-normals with means of 161 tokens in and 338 out, at most 2,048 together,
and the cache has 15,700 slots: a chat and a cache of this benchmark's own choice.
"""

import argparse
import csv
import json
import math
import random
from collections import Counter
from pathlib import Path

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Request, Sequence

LAYOUTS = ("contiguous", "dynamic", "paged")
BLOCK = 16
MEANS, LONGEST, SPREAD = (161.0, 338.0), 2048, 1.0


def synthetic(count: int, seed: int) -> list[tuple[int, int]]:
    """Lengths of prompts and answers."""
    draw = random.Random(seed)

    def length(mean: float) -> int:
        # The mean of a log-normal is exp(mu + sigma² / 2).
        return max(1, int(draw.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)))

    pairs = ((length(MEANS[0]), length(MEANS[1])) for _ in range(4 * count))
    return [pair for pair in pairs if sum(pair) <= LONGEST][:count]


def from_trace(path: Path, count: int) -> list[tuple[int, int]]:
    """Of the first `count` requests of a CSV of Azure's or a JSONL of Mooncake's."""
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".csv":
            rows = csv.DictReader(file)
            pairs = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
        else:
            lines = (json.loads(line) for line in file)
            pairs = [(row["input_length"], row["output_length"]) for row in lines]
    return [(max(1, into), max(1, out)) for into, out in pairs[:count]]


def sequence(number: int, prompt: int, answer: int) -> Sequence:
    tokens = (number,) * prompt
    return Sequence(
        request=Request(id=str(number), prompt=tokens, max_tokens=answer, arrival=0.0),
        tokens=list(tokens),
    )


def slots(scheduler: Scheduler) -> Counter[str]:
    """Every slot of the cache, by what it is for."""
    cache = scheduler.cache
    found: Counter[str] = Counter({"free": cache.num_free * cache.block_size})
    for one in scheduler.running:
        held = len(one.blocks) * cache.block_size
        # The last token's KV is never written.
        will = min(held, one.most_tokens - 1)
        found["used"] += one.num_computed
        found["reserved"] += will - one.num_computed
        found["never used"] += held - will
    return found


def measured(layout: str, pairs: list[tuple[int, int]], cache_tokens: int) -> dict[str, object]:
    longest = max(map(sum, pairs))
    limits = Limits(
        max_tokens_per_step=8192,
        max_sequences=1024,
        max_length=longest,
        max_waiting=len(pairs),
    )
    cache = BlockCache(
        cache_tokens // BLOCK, BLOCK, layout=layout, prefix=False, max_length=longest
    )
    scheduler = Scheduler(limits, cache)
    for number, (prompt, answer) in enumerate(pairs):
        scheduler.add(sequence(number, prompt, answer), 0.0)
    states: Counter[str] = Counter()
    running = steps = crowded = moved = 0
    while scheduler.has_work:
        step = scheduler.schedule(0.0)
        steps += 1
        moved += len(step.copies)
        if scheduler.waiting:
            crowded += 1
            running += len(scheduler.running)
            states += slots(scheduler)
        scheduler.complete(step, [[0] if one.samples else [] for one in step.slices], 0.0)
    total = sum(states.values())
    return {
        "layout": layout,
        "steps": steps,
        "concurrency": running / crowded if crowded else float("nan"),
        **{state: states[state] / total for state in ("used", "reserved", "never used", "free")},
        "preemptions": scheduler.counters.preemptions,
        "recomputed_tokens": scheduler.counters.wasted_tokens,
        "moved_blocks": moved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--cache-tokens", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.trace:
        pairs = from_trace(arguments.trace, arguments.requests)
    else:
        pairs = synthetic(arguments.requests, arguments.seed)
    longest = max(map(sum, pairs))
    cache_tokens = arguments.cache_tokens or (8 * longest if arguments.trace else 15_700)
    rows = [measured(layout, pairs, cache_tokens) for layout in LAYOUTS]
    facts = {
        "requests": len(pairs),
        "mean_prompt": sum(prompt for prompt, _ in pairs) / len(pairs),
        "mean_answer": sum(answer for _, answer in pairs) / len(pairs),
        "longest": longest,
        "cache_tokens": cache_tokens,
    }
    if arguments.json:
        print(json.dumps({**facts, "layouts": rows}))
        return
    print(", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in facts.items()))
    print(f"{'':12}{'at once':>9}{'used':>8}{'reserved':>10}{'never':>8}{'free':>8}", end="")
    print(f"{'steps':>8}{'preempted':>11}{'recomputed':>12}{'moved blocks':>14}")
    for row in rows:
        print(f"{row['layout']:12}{row['concurrency']:9.1f}{row['used']:8.1%}", end="")
        print(f"{row['reserved']:10.1%}{row['never used']:8.1%}{row['free']:8.1%}", end="")
        print(f"{row['steps']:8}{row['preemptions']:11}{row['recomputed_tokens']:12}", end="")
        print(f"{row['moved_blocks']:14}")


if __name__ == "__main__":
    main()
