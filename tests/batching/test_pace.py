"""Chunks of prompts beside decodes, from the times that steps took; the clock is made up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median, quantiles

import pytest
from tests.batching.test_scheduler import added, scheduler_of, sequence_of, shape

from ridgeline.batching.pace import (
    FIRST_TOKENS,
    KNOWN_FOR_STEPS,
    LEAST_TOKENS,
    LEAST_UNASKED,
    LONGER,
    MOST_STEPS,
    StepPace,
    prompts_beside_decodes,
)
from ridgeline.batching.sequence import work_of


def paced(decode: float, token: float, *, target: float | None = None, steps: int = 40) -> StepPace:
    """A pace that has seen steps of a machine whose times are these."""
    pace = StepPace(2048, target)
    for _ in range(steps):
        pace.note(0, 8, seconds=decode)
        chunk = pace.tokens(8, 0)
        pace.note(chunk, 8, seconds=decode + chunk * token)
    return pace


@pytest.mark.parametrize(("decode", "token"), [(0.010, 0.0005), (0.030, 0.0001), (0.001, 0.002)])
def test_a_step_takes_what_the_target_allows(decode: float, token: float) -> None:
    chunk = paced(decode, token, target=0.05).tokens(8, 0)
    assert decode + chunk * token == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(("decode", "token"), [(0.075, 0.0006), (0.02, 0.0001), (0.01, 0.00002)])
def test_a_step_takes_twice_as_long_as_its_decodes_where_no_target_is_given(
    decode: float, token: float
) -> None:
    chunk = paced(decode, token).tokens(8, 0)
    assert decode + chunk * token == pytest.approx(LONGER * decode, rel=0.05)


def test_prompts_go_on_where_decodes_alone_take_longer() -> None:
    assert paced(0.2, 0.001, target=0.05).tokens(8, 100_000) == LEAST_TOKENS


def test_prompts_behind_the_first_are_done_in_so_many_steps_where_no_target_is_given() -> None:
    pace = paced(0.01, 0.001)
    assert pace.tokens(8, 0) < 64
    assert pace.tokens(8, 64 * MOST_STEPS) == 64
    assert pace.tokens(8, 10_000 * MOST_STEPS) == 2048


def test_one_slow_step_changes_nothing() -> None:
    pace = paced(0.01, 0.0005, target=0.05)
    before = pace.tokens(8, 0)
    pace.note(0, 8, seconds=3.0)
    pace.note(64, 8, seconds=3.0)
    assert pace.tokens(8, 0) == before


def test_steps_that_seem_to_cost_nothing_double_a_chunk_at_most() -> None:
    pace = paced(0.1, 0.0005)
    before = pace.tokens(8, 0)
    for _ in range(60):
        pace.note(before, 8, seconds=0.001)
        pace.note(0, 8, seconds=0.01)
    assert pace.tokens(8, 0) == 2 * before


def test_decodes_are_compared_with_steps_that_had_as_many() -> None:
    pace = StepPace(2048)
    for decodes in (4, 64) * 30:
        pace.note(0, decodes, seconds=0.001 * decodes)
        pace.note(50, decodes, seconds=0.001 * decodes + 0.05)
    few = pace.tokens(4, 0)
    many = pace.tokens(64, 0)
    assert (few, many) == (LEAST_UNASKED, 64)


def test_nothing_is_known_at_first_and_a_whole_prompt_alone_tells() -> None:
    pace = StepPace(2048, 0.05)
    assert pace.tokens(8, 0) == FIRST_TOKENS
    pace.note(2000, 0, seconds=1.0)
    assert pace.tokens(8, 0) == 100


def test_a_step_without_prompts_comes_now_and_then_where_all_have_some() -> None:
    pace = StepPace(2048)
    chunks = []
    for _ in range(3 * (KNOWN_FOR_STEPS + 1)):
        chunks.append(pace.tokens(8, 100_000))
        pace.note(chunks[-1], 8, seconds=0.01 + 0.001 * chunks[-1])
    assert [index for index, chunk in enumerate(chunks) if not chunk] == [
        (KNOWN_FOR_STEPS + 1) * number - 1 for number in (1, 2, 3)
    ]


def test_a_pace_holds_only_where_others_decode() -> None:
    scheduler = scheduler_of(max_tokens_per_step=8)
    scheduler.pace = StepPace(2, 1e-9)
    model = added(scheduler, sequence_of(7))
    assert shape(model) == [(0, 7)]
    scheduler.add(sequence_of(5, first=9), 0.0)
    assert shape(model) == [(7, 1), (0, 2)]
    assert shape(model) == [(8, 1), (2, 2)]
    assert shape(model) == [(9, 1), (4, 1)]


@pytest.mark.parametrize("target", [None, 0.02])
@pytest.mark.parametrize("wavering", [0.03, 0.1])
def test_most_steps_keep_the_target_however_much_they_waver(
    target: float | None, wavering: float
) -> None:
    draw, pace = random.Random(0), StepPace(2048, target)
    kept = []
    for number in range(400):
        chunk = pace.tokens(8, 0)
        seconds = (0.01 + 0.0005 * chunk) * draw.lognormvariate(0.0, wavering)
        pace.note(chunk, 8, seconds=seconds)
        if chunk and number > 50:
            kept.append(seconds <= 0.02)
    assert 0.8 <= sum(kept) / len(kept) <= 0.97


@pytest.mark.parametrize("answers", [1, 4, 64])
@pytest.mark.parametrize("token", [0.0005, 0.00002])
@pytest.mark.parametrize("deeper", [0.0, 0.0005])
def test_a_long_prompt_makes_steps_twice_as_long_and_itself_too(
    answers: int, token: float, deeper: float
) -> None:
    """A token takes longer by `deeper` of itself for each that it looks back at."""
    scheduler = scheduler_of(20_000, prefix=False)
    pace = scheduler.pace = StepPace(2048)
    for _ in range(answers):
        scheduler.add(sequence_of(10, 3000), 0.0)
    alone = 0.008 + 0.0005 * answers
    steps: list[float] = []
    while len(steps) < 20 or len(scheduler.running) > answers or scheduler.waiting:
        if len(steps) == 20:
            scheduler.add(sequence_of(4000, 2), 0.0)
        step = scheduler.schedule(0.0)
        work = work_of(step)
        noted = prompts_beside_decodes(step)
        prompt = token * work.prompt_tokens * (1 + deeper * noted[2])
        seconds = 0.008 + 0.0005 * work.decodes + prompt
        pace.note(*noted, seconds=seconds)
        ends = [one.start + one.count == len(one.sequence.tokens) for one in step.slices]
        scheduler.complete(step, [[0] if end else [] for end in ends], 0.0)
        steps.append(seconds)
        assert len(steps) <= 21 or seconds <= (2.02 + deeper * 200) * alone
    whole = 4000 * token * (1 + deeper * 2000)
    assert sum(steps[20:]) <= 2.2 * (0.008 + whole) + 3 * alone


@dataclass
class Load:
    """A closed loop on a machine with steps of 10 ms, 1 ms a decode, 0.6 ms a prompt token."""

    paced: bool
    prompt: int
    answer: int
    connections: int
    rounds: int = 6

    def run(self) -> tuple[float, float]:
        """The ratio of ITL p99 and p50, and tokens of answers per second."""
        scheduler = scheduler_of(20_000, prefix=False)
        pace = scheduler.pace = StepPace(2048) if self.paced else None
        now, made, left = 0.0, 0, self.connections * (self.rounds - 1)
        gaps: list[float] = []
        for _ in range(self.connections):
            scheduler.add(sequence_of(self.prompt, self.answer), now)
            made += 1
        while scheduler.has_work:
            step = scheduler.schedule(now)
            work = work_of(step)
            seconds = 0.010 + 0.001 * work.decodes + 0.0006 * work.prompt_tokens
            now += seconds
            if pace is not None:
                pace.note(work.prompt_tokens, work.decodes, seconds=seconds)
            ends = [one.start + one.count == len(one.sequence.tokens) for one in step.slices]
            gaps += [seconds] * work.decodes
            scheduler.complete(step, [[0] if end else [] for end in ends], now)
            for one in step.slices:
                if one.sequence.finish_reason is not None and left:
                    left -= 1
                    scheduler.add(sequence_of(self.prompt, self.answer), now)
                    made += 1
        return quantiles(gaps, n=100)[98] / median(gaps), made * self.answer / now


@pytest.mark.parametrize(
    ("prompt", "answer", "connections", "ratio"),
    [(128, 128, 64, 3.0), (1000, 100, 16, 3.0)],
)
def test_answers_wait_for_prompts_little_and_throughput_stays(
    prompt: int, answer: int, connections: int, ratio: float
) -> None:
    load = {"prompt": prompt, "answer": answer, "connections": connections}
    whole_ratio, whole = Load(paced=False, **load).run()
    cut_ratio, cut = Load(paced=True, **load).run()
    assert cut_ratio <= min(ratio, whole_ratio)
    assert cut >= 0.95 * whole
