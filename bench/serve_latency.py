"""What prefix caching saves, and how much a long prompt delays answers that are being written.

    python bench/serve_latency.py MODEL_DIR [--rounds 8] [--length 1000] [--stall] [--cpu]

*Shared prompts*: requests whose prompts agree in their first 90 % (as with one system prompt), one
after another, with the prefix cache and without, in turns; printed is the time to the first token
and its ratio (Hodges-Lehmann over the rounds with its Wilcoxon interval). *Stall*: four answers are
being written when a long prompt arrives; the middle and the longest pause between two of their
tokens are held against a step of theirs before, and steps with a part of the prompt against the
last ones without, for several budgets of tokens per step; beside it stands the longest of their
steps while nothing comes. `--stall` leaves the first of the two out. `--cpu` counts CPU seconds of
one thread for the second, where other programs use the machine; chunks follow them, too.
"""

import argparse
import gc
import itertools
import random
import statistics
import time
from collections import deque

from ridgeline.batching.pace import StepPace
from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Abort, Delta, Sampling, Submit

NUMBERS = itertools.count()
CALM_STEPS = 400
"""Steps of answers that nothing comes beside."""


class Watched(StepPace):
    """The pace of an engine, which remembers how much longer steps with prompts took."""

    def __init__(self, most_tokens: int) -> None:
        super().__init__(most_tokens)
        self._alone: deque[float] = deque(maxlen=7)
        self.over_alone: list[float] = []

    def note(self, prompt_tokens: int, decodes: int, place: int = 0, *, seconds: float) -> None:
        """Take in how long a step took, and what it is of the last ones without prompts."""
        super().note(prompt_tokens, decodes, place, seconds=seconds)
        if not prompt_tokens:
            self._alone.append(seconds)
        elif decodes and self._alone:
            self.over_alone.append(seconds / statistics.median(self._alone))


def submit(engine: ServingEngine, prompt: list[int], count: int) -> str:
    name = str(next(NUMBERS))
    sampling = Sampling(temperature=0.0, max_tokens=count, ignore_eos=True)
    engine.handle(Submit(id=name, prompt=tuple(prompt), sampling=sampling))
    return name


def tokens_of(engine: ServingEngine) -> list[str]:
    """One step; whose tokens came of it."""
    engine.step()
    found = []
    for message in engine.take():
        assert isinstance(message, Delta), message
        found += [message.id] * len(message.tokens)
    return found


def first_token_seconds(engine: ServingEngine, prompt: list[int]) -> float:
    began = time.perf_counter()
    submit(engine, prompt, 1)
    while engine.has_work:
        tokens_of(engine)
    return time.perf_counter() - began


def shared_prompts(model: str, length: int, rounds: int) -> None:
    draw = random.Random(0)
    engines = {
        cached: ServingEngine(EngineConfig(model=model, prefix_cache=cached, max_length=length + 8))
        for cached in (True, False)
    }
    vocab = engines[True].model.vocab
    seen: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        shared = [draw.randrange(vocab) for _ in range(length * 9 // 10)]
        prompts = [
            [*shared, *(draw.randrange(vocab) for _ in range(length - len(shared)))]
            for _ in range(5)
        ]
        for cached in (True, False) if number % 2 else (False, True):
            times = [first_token_seconds(engines[cached], prompt) for prompt in prompts]
            if number:  # the first round warms up
                seen[cached].append(statistics.median(times[1:]))
    found = ratio_interval(seen[False], seen[True])
    print(
        f"prompts of {length} tokens, 90 % shared: first token after"
        f" {statistics.median(seen[False]) * 1e3:.1f} ms without the cache,"
        f" {statistics.median(seen[True]) * 1e3:.1f} ms with it:"
        f" {found.ratio:.1f}x [{found.low:.1f}, {found.high:.1f}]"
    )


def stall(model: str, length: int, budget: int, rounds: int, *, cpu: bool) -> None:
    clock = time.process_time if cpu else time.perf_counter
    draw = random.Random(1)
    config = EngineConfig(
        model=model,
        prefix_cache=False,
        max_length=length + 64,
        max_tokens_per_step=budget,
        threads=1 if cpu else None,
    )
    engine = ServingEngine(config, clock)
    watched = engine.scheduler.pace = Watched(budget)
    gc.freeze()  # as `ridgeline serve` does
    vocab = engine.model.vocab
    middles, pauses, steps, firsts, undisturbed = [], [], [], [], []
    for _ in range(rounds):
        answers = {
            submit(engine, [draw.randrange(vocab) for _ in range(32)], length // 2): 0.0
            for _ in range(4)
        }
        for _ in range(4):
            tokens_of(engine)
        before = []
        for _ in range(12):
            began = clock()
            tokens_of(engine)
            before.append(clock() - began)
        step = statistics.median(before)
        calm = []
        for _ in range(CALM_STEPS):
            began = clock()
            tokens_of(engine)
            calm.append(clock() - began)
        undisturbed.append(max(calm) / step)
        watched.over_alone.clear()
        long = submit(engine, [draw.randrange(vocab) for _ in range(length)], 2)
        arrived = clock()
        last = dict.fromkeys(answers, arrived)
        gaps = []
        while engine.has_work:
            came = tokens_of(engine)
            now = clock()
            for name in set(came) & set(answers):
                gaps.append(now - last[name])
                last[name] = now
            if long in came:
                break
        steps.append(step)
        firsts.append(clock() - arrived)
        middles.append(statistics.median(gaps))
        pauses.append(max(gaps))
        for name in answers:
            engine.handle(Abort(id=name))
        while engine.has_work:
            engine.step()
        engine.take()
    step, pause = statistics.median(steps), statistics.median(pauses)
    print(
        f"prompt of {length} tokens, at most {budget} tokens a step: longest pause"
        f" {pause * 1e3:.0f} ms, a step of four answers {step * 1e3:.1f} ms:"
        f" {pause / step:.1f} steps, the middle one {statistics.median(middles) / step:.1f};"
        f" the prompt's first token after {statistics.median(firsts):.2f} s;"
        f" without it the longest of {CALM_STEPS} is {statistics.median(undisturbed):.1f} steps"
    )
    ratios = sorted(watched.over_alone)
    if ratios:
        middle, most = ratios[len(ratios) // 2], ratios[int(0.9 * len(ratios))]
        print(
            f"  a step with a part of the prompt, over the last ones without: middle {middle:.2f},"
            f" nine in ten {most:.2f}, longest {ratios[-1]:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--stall", action="store_true", help="the long prompt alone")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread, for that")
    options = parser.parse_args()
    if not options.stall:
        shared_prompts(options.model, options.length, options.rounds)
    rounds = max(2, options.rounds // 4)
    for budget in (16, 64, 512, 2048):
        stall(options.model, options.length - 100, budget, rounds, cpu=options.cpu)


if __name__ == "__main__":
    main()
