"""Draws cases: a workload, up to three faults that can happen to it, a profiler's settings.

    python -m tests.trace.simulated.compose 7 60     sixty cases of seed 7, as rows of cases.toml

`cases.toml` has the first such draws for good; other seeds are cases that no rule has been seen
against. A draw whose faults hide each other is left out: each cure alone gains nothing, so there is
no first cause.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping

import msgspec
from tests.trace.simulated.truth import ONCE, Case, Truth, truth_of

STRENGTHS: dict[str, tuple[float, float]] = {
    "slow-loader": (0.3, 2.5), "plain-loader": (0.5, 2.5),
    "slow-workers": (1.0, 2.5), "item-step": (1, 1),
    "item-layer": (1, 1), "event-layer": (1, 1), "poll-step": (1, 1), "slow-python": (0.8, 3.0),
    "eager": (0.8, 2.0), "prepare": (0.1, 1.2), "finish": (0.1, 1.2), "uncached": (20, 300),
    "start-up": (0.1, 2.0), "late-module": (0.1, 1.0), "pageable": (0.05, 1.0),
    "offload": (0.1, 1.0), "side-copy": (0.1, 0.8), "no-overlap": (1, 1), "slow-link": (1, 1),
    "slow-network": (1, 1), "small-reduces": (1e3, 1e5), "unbucketed": (2, 40),
    "late-host": (1.1, 2.5),
    "late-gpu": (0.1, 0.8), "side-stream": (0.1, 0.8), "stall": (0.1, 0.8),
    "odd-gemm": (0.25, 0.5), "slow-softmax": (0.1, 0.4), "lead": (0.2, 2.0),
    "lone-gap": (1.0, 2.0), "small-copies": (100, 4000), "pause": (0.2, 2.0),
    "recompile": (0.2, 2.0), "cpu-optimizer": (0.15, 1.5), "save": (0.1, 1.0),
    "loop-optimizer": (20, 200), "synced-passes": (1, 1), "late-message": (0.1, 1.0),
    "few-passes": (2, 9), "throttled": (0.15, 1.0), "shared-gpu": (0.1, 0.6),
    "slow-host": (2.0, 6.0), "stream-copy": (0.08, 0.8), "evaluation": (0.15, 1.0),
    "imbalance": (0.2, 0.8),
}  # fmt: skip
"""The range that a strength is drawn from, evenly on a logarithmic scale."""
_ANY = ("item-step", "poll-step", "prepare", "finish", "start-up", "late-module", "pageable",
        "side-stream", "side-copy", "stall", "lead", "uncached", "lone-gap")  # fmt: skip
_TRAINS = (*_ANY, "slow-loader", "slow-workers", "slow-python", "offload", "small-copies", "pause",
           "recompile", "cpu-optimizer", "save", "loop-optimizer")  # fmt: skip
_TALKS = ("late-message", "no-overlap", "slow-link", "slow-network", "late-host", "late-gpu")
POSSIBLE: dict[str, tuple[str, ...]] = {
    "gpt": (*_TRAINS, "odd-gemm", "slow-softmax", "item-layer"),
    "resnet": (*_TRAINS, "item-layer", "event-layer"),
    "dlrm": _TRAINS,
    "prefill": (*_ANY, "slow-python", "odd-gemm", "slow-softmax"),
    "decode": (
        "item-step",
        "poll-step",
        "prepare",
        "finish",
        "start-up",
        "late-module",
        "pageable",
        "side-stream",
        "side-copy",
        "lead",
        "eager",
    ),
    "diffusion": (*_ANY, "slow-python", "item-layer", "pause", "recompile"),
    "ddp": (*_TALKS, "unbucketed", "item-step", "plain-loader", "prepare", "odd-gemm"),
    "resnet_ddp": (*_TALKS, "small-reduces", "unbucketed", "item-step", "slow-loader", "pageable"),
    "fsdp": (*_TALKS, "item-step", "slow-workers", "offload"),
    "dlrm_ranks": (*_TALKS, "item-step", "slow-loader", "pageable"),
    "tensor_parallel": ("slow-link", "slow-network", "late-host", "item-step", "prepare"),
}
"""Workload → the faults that such a program can have."""
WITH_MESSAGES: dict[str, tuple[str, ...]] = {
    "pipeline": ("late-gpu", "late-host", "few-passes", "slow-network", "item-step"),
    "ring": ("late-gpu", "late-host", "slow-network", "item-step", "prepare"),
}
"""The same of ranks that send to each other; apart, so that a seed's draws stay what they were."""
OF_THE_MACHINE: dict[str, tuple[str, ...]] = {
    "gpt": ("throttled", "shared-gpu", "stream-copy", "evaluation", "slow-host"),
    "resnet": ("throttled", "shared-gpu", "stream-copy", "evaluation", "slow-host"),
    "prefill": ("throttled", "shared-gpu", "stream-copy", "slow-host"),
    "decode": ("throttled", "shared-gpu", "prepare", "stream-copy"),
    "diffusion": ("throttled", "shared-gpu", "slow-host"),
    "ddp": ("imbalance", "late-host", "slow-network", "slow-host"),
    "fsdp": ("imbalance", "late-gpu", "slow-link"),
    "dlrm_ranks": ("imbalance", "late-host", "stream-copy"),
    "tensor_parallel": ("imbalance", "late-host", "slow-network"),
}
"""What the machine does to a program, and clocks of ranks that do not agree; apart, too."""
EXCLUSIVE = (
    {"slow-link", "slow-network"}, {"slow-loader", "plain-loader", "slow-workers"},
    {"item-step", "poll-step", "item-layer", "event-layer"}, {"small-reduces", "unbucketed"},
    {"cpu-optimizer", "loop-optimizer"},
)  # fmt: skip
"""Of each of these a program has one: they change the same thing."""


def draw(
    seed: int, possible: Mapping[str, tuple[str, ...]] = POSSIBLE
) -> Iterator[tuple[str, Case, Truth]]:
    """Cases without end, each with its name and its truth."""
    dice = random.Random(seed)
    number = 0
    while True:
        case = _case(dice, possible)
        if any(len(group & case.faults.keys()) > 1 for group in EXCLUSIVE):
            continue
        truth = truth_of(case)
        if truth.worth_us is None and truth.filled < 0.8:
            continue
        number += 1
        yield "-".join((case.workload, *case.faults, f"s{seed}", str(number))), case, truth


def _case(dice: random.Random, possible: Mapping[str, tuple[str, ...]]) -> Case:
    workload = dice.choice(list(possible))
    many = dice.choices((0, 1, 2, 3), (1, 6, 5, 2))[0]
    faults = {
        fault: _rounded(_between(dice, *STRENGTHS[fault]))
        for fault in dice.sample(possible[workload], many)
    }
    gpu = dice.choice(("v100", "a100", "a100", "h100", "h100", "mi300x"))
    version = "old" if gpu == "v100" and dice.random() < 0.7 else "new"
    if version == "new" and gpu == "a100" and dice.random() < 0.3:
        version = "plain"
    options: dict[str, int | bool | str] = {}
    if workload in {"ddp", "resnet_ddp", "tensor_parallel", *WITH_MESSAGES}:
        options["ranks"] = dice.choice((2, 4))
    ranks = "ranks" in options or workload in {"fsdp", "dlrm_ranks"}
    apart = possible is OF_THE_MACHINE and ranks
    return Case(
        workload=workload, gpu=gpu, faults=faults, options=options, version=version,
        steps=dice.random() < 0.75, shapes=dice.random() < 0.6, stacks=dice.random() < 0.3,
        warm=2 if dice.random() < 0.3 and not ONCE & faults.keys() else 0,
        syncs=dice.random() < 0.2, watchdog=dice.random() < 0.15, seed=dice.randrange(1000),
        clocks_us=dice.choice((0.0, 700.0, -40_000.0)) if apart else 0.0,
    )  # fmt: skip


def _between(dice: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** dice.random()


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def as_toml(name: str, case: Case) -> str:
    """The case as a row of `cases.toml`."""
    lines = [f"[{name}]"]
    default = msgspec.structs.asdict(Case(workload="", gpu=""))
    for key, value in msgspec.structs.asdict(case).items():
        if value != default[key]:
            lines.append(f"{key} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_literal(one)}" for key, one in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def main() -> None:
    seed, many = int(sys.argv[1]), int(sys.argv[2])
    for _, (name, case, _) in zip(range(many), draw(seed), strict=False):
        sys.stdout.write(as_toml(name, case) + "\n")


if __name__ == "__main__":
    main()
