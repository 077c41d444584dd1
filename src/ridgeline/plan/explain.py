"""Why one estimate beats another: term by term, in sentences with numbers.

The exposed terms of an estimate add up to its step, so the difference of two steps is the sum of
the differences of their terms. Each sentence names the knobs that move its term and differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ridgeline import quantity
from ridgeline.errors import InputError, in_words
from ridgeline.records.estimate import Estimate
from ridgeline.records.finite import Computed
from ridgeline.records.input_file import read_json
from ridgeline.records.layout import Layout

TERMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gemm": ("matmuls", ("precision", "tp", "etp", "cp", "micro_batch", "ep")),
    "attention": ("attention", ("cp", "tp", "micro_batch")),
    "elementwise": ("element-wise work", ("sp", "tp", "compiled", "precision")),
    "adapters": ("adapters", ("micro_batch",)),
    "dequantise": ("turning four bits into 16", ("micro_batch", "recompute", "compiled")),
    "recompute": ("recomputation", ("recompute",)),
    "tensor": ("waiting for tensor parallelism", ("tp", "sp", "cp", "recompute")),
    "context": ("waiting for context parallelism", ("cp", "tp")),
    "expert": ("waiting for expert all-to-alls", ("ep", "etp", "tp")),
    "shards": ("waiting for sharded weights", ("zero", "fsdp", "micro_batch")),
    "pipeline": ("sending between pipeline stages", ("pp", "vpp", "micro_batch")),
    "bubble": ("pipeline bubble", ("pp", "vpp", "schedule", "micro_batch", "dp")),
    "logits": ("logits and loss", ("tp", "pp")),
    "data": ("waiting for gradients", ("dp", "fsdp", "zero", "tp", "pp")),
    "disk": ("waiting for the disk", ("offload", "micro_batch", "zero", "fsdp")),
    "optimizer": ("optimizer", ("zero", "fsdp", "offload", "tp", "pp")),
    "host": ("waiting for the host", ("micro_batch", "pp", "tp", "recompute")),
    "straggle": ("waiting for the slowest device", ("dp",)),
}
"""Term of `Estimate.breakdown` → its name, and the knobs that move it."""
_WORTH_SAYING = 0.04
"""Share of the larger step below which a term's difference is not worth a sentence."""


class TermDifference(Computed, frozen=True, kw_only=True):
    """One term of two estimates."""

    term: str
    first_seconds: float
    second_seconds: float


class Explanation(Computed, frozen=True, kw_only=True, tag_field="record", tag="explanation"):
    """How two estimates differ. `first` and `second` are in the order they were given in."""

    first: str
    second: str
    first_step_seconds: float
    second_step_seconds: float
    faster: str
    """The name of the faster one."""
    times_faster: float
    """The slower one's time for the same tokens over the faster one's."""
    knobs: dict[str, tuple[str, str]]
    """Knob → its two values, for those that differ."""
    terms: list[TermDifference]
    """The largest difference first."""
    sentences: list[str]


def explain(first: Estimate, second: Estimate, names: tuple[str, str] = ("A", "B")) -> Explanation:
    """Why one of two estimates beats the other."""
    ratio = (first.step_seconds / second.step_seconds) * (
        second.layout.global_batch / first.layout.global_batch
    )
    winner, loser = (first, second) if ratio <= 1 else (second, first)
    ordered = names if ratio <= 1 else (names[1], names[0])
    keys = dict.fromkeys([*first.breakdown, *second.breakdown])
    terms = sorted(
        (
            TermDifference(
                term=key,
                first_seconds=first.breakdown.get(key, 0.0),
                second_seconds=second.breakdown.get(key, 0.0),
            )
            for key in keys
        ),
        key=lambda term: -abs(term.second_seconds - term.first_seconds),
    )
    return Explanation(
        first=names[0],
        second=names[1],
        first_step_seconds=first.step_seconds,
        second_step_seconds=second.step_seconds,
        faster=ordered[0],
        times_faster=max(ratio, 1 / ratio),
        knobs=knob_differences(first.layout, second.layout),
        terms=terms,
        sentences=[
            headline(winner, loser, ordered),
            *term_sentences(winner, loser, ordered),
            *_memory_sentences(winner, loser, ordered),
            *_assumption_sentences(winner, loser, ordered),
        ],
    )


def read_estimate(path: Path) -> Estimate:
    """The estimate in a file of `predict training --json`, or the best one of a plan's."""
    cure = (
        "write one with `ridgeline predict training … --json` or `ridgeline plan training … --json`"
    )
    content: Any = read_json(path, object, cure=cure)
    try:
        if isinstance(content, dict) and "best" in content:
            content = content["best"]["estimate"]
        return msgspec.convert(content, type=Estimate)
    except (msgspec.MsgspecError, InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not an estimate ({in_words(error)}); {cure}") from None


def knob_differences(first: Layout, second: Layout) -> dict[str, tuple[str, str]]:
    """Knobs of two layouts that differ, as text."""
    pairs = {
        name: (str(getattr(first, name)), str(getattr(second, name)))
        for name in Layout.__struct_fields__
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def headline(winner: Estimate, loser: Estimate, names: tuple[str, str]) -> str:
    """Which one is faster and by how much, per token where the batches differ."""
    ours, theirs = (quantity.seconds(one.step_seconds) for one in (winner, loser))
    steps = f"{ours} against {theirs} a step"
    batches = winner.layout.global_batch, loser.layout.global_batch
    ratio = loser.step_seconds / winner.step_seconds * batches[0] / batches[1]
    if batches[0] != batches[1]:
        steps += f" of {batches[0]} and {batches[1]} sequences"
    if ratio < 1.005:
        return f"{names[0]} and {names[1]} are within 0.5 %: {steps}"
    return f"{names[0]} is {ratio:.2f}x as fast as {names[1]}: {steps}"


def term_sentences(
    winner: Estimate, loser: Estimate, names: tuple[str, str], most: int = 4
) -> list[str]:
    """The terms that decide, the largest difference first."""
    scale = max(winner.step_seconds, loser.step_seconds)
    keys = dict.fromkeys([*winner.breakdown, *loser.breakdown])
    gaps = {key: loser.breakdown.get(key, 0.0) - winner.breakdown.get(key, 0.0) for key in keys}
    decisive = [key for key, gap in gaps.items() if abs(gap) >= _WORTH_SAYING * scale]
    if not decisive:
        decisive = [key for key, gap in gaps.items() if abs(gap) >= _WORTH_SAYING / 4 * scale]
    decisive.sort(key=lambda key: -abs(gaps[key]))
    return [_term_sentence(key, winner, loser, names) for key in decisive[:most]]


def _term_sentence(key: str, winner: Estimate, loser: Estimate, names: tuple[str, str]) -> str:
    words, knobs = TERMS.get(key, (key.replace("_", " "), ()))
    ours, theirs = winner.breakdown.get(key, 0.0), loser.breakdown.get(key, 0.0)
    verb = "saves" if theirs > ours else "loses"
    text = (
        f"{names[0]} {verb} {quantity.seconds(abs(theirs - ours))} in {words}"
        f" ({quantity.seconds(ours)} against {quantity.seconds(theirs)})"
    )
    differ = knob_differences(winner.layout, loser.layout)
    causes = [
        f"{knob} {differ[knob][0]} against {differ[knob][1]}" for knob in knobs if knob in differ
    ]
    return text + (f": {', '.join(causes[:3])}" if causes else "")


def _memory_sentences(winner: Estimate, loser: Estimate, names: tuple[str, str]) -> list[str]:
    ours, theirs = winner.memory, loser.memory
    text = (
        f"{names[0]} peaks at {quantity.memory(ours.peak_bytes)} of"
        f" {quantity.memory(ours.capacity_bytes)} ({ours.verdict}), {names[1]} at"
        f" {quantity.memory(theirs.peak_bytes)} ({theirs.verdict})"
    )
    gaps = _stage_terms(loser)
    for key, value in _stage_terms(winner).items():
        gaps[key] = gaps.get(key, 0.0) - value
    largest = max(gaps, key=lambda name: abs(gaps[name]), default=None)
    if largest is not None and abs(gaps[largest]) > 0.02 * ours.capacity_bytes:
        less = "less" if gaps[largest] > 0 else "more"
        text += f"; {names[0]} has {quantity.memory(abs(gaps[largest]))} {less} of {largest}"
    return [text]


def _assumption_sentences(winner: Estimate, loser: Estimate, names: tuple[str, str]) -> list[str]:
    """What one of the two assumes and the other does not: they may not be of one cluster."""
    ours = [one for one in winner.assumed if one not in loser.assumed]
    theirs = [one for one in loser.assumed if one not in winner.assumed]
    return [
        f"only {name} assumes: {'; '.join(alone)}"
        for name, alone in zip(names, (ours, theirs), strict=True)
        if alone
    ]


def _stage_terms(estimate: Estimate) -> dict[str, float]:
    """The memory terms of the fullest stage."""
    stages = estimate.memory.stages
    if not stages:
        return {}
    return dict(max(stages, key=lambda stage: stage.total_bytes).terms)
