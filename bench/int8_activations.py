"""int8 activations (`--weights w8a8`) beside weights of int8 alone and of bfloat16, on this CPU.

    python bench/int8_activations.py [--model l500] [--rounds 6] [--threads N] [--folder DIR]

One engine of each kind in this process, measured in turns, in an order that changes from round to
round: a prompt of 1,000 tokens until its first token, and steps in which sixteen sequences decode.
Times are CPU seconds of the process, which other programs disturb less than wall time; ratios are
of another kind's over those of w8a8, above 1 w8a8 is faster. The model has random weights in bf16.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Sampling, Submit

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.serve_vs_peers import SHAPES, VOCAB, make

KINDS = ("w8a8", "int8", "model")
PROMPT, SEQUENCES, STEPS = 1000, 16, 12


def submit(engine: ServingEngine, name: str, length: int, tokens: int) -> None:
    words = torch.randint(10, VOCAB, (length,)).tolist()
    sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.handle(Submit(id=name, prompt=tuple(words), sampling=sampling))


def finish(engine: ServingEngine) -> None:
    while engine.has_work:
        engine.step()
    engine.take()


def prefill(engine: ServingEngine, turn: int) -> float:
    submit(engine, f"prompt {turn}", PROMPT, 1)
    began = time.process_time()
    finish(engine)
    return time.process_time() - began


def decode(engine: ServingEngine, turn: int) -> float:
    """One step of sixteen, the mean of some."""
    for number in range(SEQUENCES):
        submit(engine, f"{turn} {number}", 24, STEPS + 2)
    engine.step()
    engine.step()
    began = time.process_time()
    for _ in range(STEPS - 2):
        engine.step()
    found = (time.process_time() - began) / (STEPS - 2)
    finish(engine)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="l500")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="keeps the model")
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)) / options.model
        if not (folder / "config.json").exists():
            make(folder, SHAPES[options.model], options.model == "smoke")
        common = {"model": str(folder), "device": "cpu", "threads": options.threads}
        common |= {"kv_bytes": 512 * 2**20, "prefix_cache": False}
        engines = {kind: ServingEngine(EngineConfig(**common, weights=kind)) for kind in KINDS}
        for kind, engine in engines.items():
            rows = [row for row in engine.ready.ledger.rows if row.what.startswith("weights")]
            print(kind, "|", ", ".join(f"{row.what}: {row.note}" for row in rows))
            print(kind, "|", ", ".join(one.in_words() for one in engine.ready.kernels))
        found = {task: {kind: [] for kind in KINDS} for task in ("prefill", "decode")}
        for turn in range(-1, options.rounds):
            for place in range(len(KINDS)):
                kind = KINDS[(turn + place) % len(KINDS)]
                for task, measure in (("prefill", prefill), ("decode", decode)):
                    seconds = measure(engines[kind], turn)
                    if turn >= 0:  # the first warms up
                        found[task][kind].append(seconds)
    for task, words in (("prefill", f"{PROMPT} tokens"), ("decode", f"a step of {SEQUENCES}")):
        for kind, seconds in found[task].items():
            line = f"{words:14s} {kind:6s} {statistics.median(seconds) * 1e3:8.1f} CPU ms"
            line += f" (least {min(seconds) * 1e3:.1f})"
            if kind != "w8a8" and len(seconds) >= 6:
                ratio = ratio_interval(seconds, found[task]["w8a8"])
                line += f", {ratio.ratio:.2f}x w8a8 [{ratio.low:.2f}, {ratio.high:.2f}]"
            print(line)


if __name__ == "__main__":
    main()
