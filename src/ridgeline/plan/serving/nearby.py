"""Questions near to one of a serving plan: what would change its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.plan.serving.plan import ServingTask

Nearby = list[tuple[str, "ServingTask"]]


def nearby(task: ServingTask) -> Nearby:
    """Other tasks, each with what is different, in few words."""
    found: Nearby = [
        ("twice the load", replace(task, users=_twice(task.users), rate=_twice(task.rate)))
    ]
    if task.ttft_p99_seconds is not None or task.itl_p99_seconds is not None:
        return found + _without_guesses(task) + _tails(task)
    found += [
        ("prompts twice as long", replace(task, prompt=2.0 * task.prompt)),
        ("completions twice as long", replace(task, completion=2.0 * task.completion)),
        *_without_guesses(task),
    ]
    if task.itl_seconds is not None:
        found.append(("half the time per token", replace(task, itl_seconds=task.itl_seconds / 2)))
        found.append(("twice the time per token", replace(task, itl_seconds=task.itl_seconds * 2)))
    if task.ttft_seconds is not None:
        halved = replace(task, ttft_seconds=task.ttft_seconds / 2)
        found.append(("half the time to the first token", halved))
    for weights in ("bf16", "fp8", "int4-awq"):
        if weights not in task.weights:
            more = replace(task, weights=(*task.weights, weights))
            found.append((f"weights in {weights} too", more))
    if "fp8" in task.weights and "bf16" in task.weights:
        found.append(("weights in bf16 only", replace(task, weights=("bf16",))))
    return found


def _tails(task: ServingTask) -> Nearby:
    """Fewer questions than of means, since each is simulated."""
    found: Nearby = []
    if task.ttft_p99_seconds is not None:
        halved = replace(task, ttft_p99_seconds=task.ttft_p99_seconds / 2)
        found.append(("half the 99th percentile to the first token", halved))
    if task.itl_p99_seconds is not None:
        halved = replace(task, itl_p99_seconds=task.itl_p99_seconds / 2)
        found.append(("half the 99th percentile between tokens", halved))
    return found


def _without_guesses(task: ServingTask) -> Nearby:
    return [] if task.drafting is None else [("no guesses", replace(task, drafting=None))]


def _twice(value: float | None) -> float | None:
    return None if value is None else 2.0 * value
