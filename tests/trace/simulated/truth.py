"""What bounds a simulated run, and what each cure is worth: the run again without each fault.

    case = cases()["gpt-loader-slow"]
    truth_of(case).causes

A fault's worth is the length of the run minus its length with that one fault gone (of a warm run
the share that its recorded steps lose, of what is recorded); a cause's worth is the same with all
faults gone that it is the name of. The label
is the cause of the fault that is worth the most, the cause that is worth the most, and every other
within 1.15 of either; where no fault is worth a tenth of the run, the roof under which the kernels
spent their time.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tests.trace.simulated.faults import CAUSES, FAULTS
from tests.trace.simulated.kineto import Schema
from tests.trace.simulated.program import Program, gpu_of
from tests.trace.simulated.run import Run, simulate
from tests.trace.simulated.workloads import built

CASES = Path(__file__).parent / "cases.toml"
CLOSE = 1.15
"""Causes within this factor of the largest are as right as it is."""
MATTERS = 0.10
"""Share of the run from which on a fault bounds it."""
SLOW_OPERATOR_US = 30.0
"""A host that needs longer for an operator is slow itself, not only its launches many."""
ONCE = {"start-up", "lead", "late-module", "lone-gap", "recompile", "save", "late-message"}
"""Faults that do not happen in every step."""
OF_KERNELS = ("odd-gemm", "slow-softmax", "fp32")
"""Faults that a trace shows only when it says what the kernels had to do."""
HOST_COLLECTIVE_US = 35.0
"""What the host needs to start a collective."""
NEARLY_EMPTY = 0.05
"""Of a run with less GPU work than this one may say just that."""
FIRST_ONLY = frozenset({"lead", "slow-loader", "plain-loader", "slow-workers"})
"""Faults that may delay the first step and no other one."""
CLEAR = 0.7
"""So much of the kernels' time is below one roof where it is clear which one bounds the run."""
BORDER = (0.08, 0.13)
"""Between these shares the fault and the kernels' roof are both right."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of `cases.toml`."""

    workload: str
    gpu: str
    faults: dict[str, float] = {}
    options: dict[str, int | bool | str] = {}
    """Arguments of the workload."""
    version: str = "new"
    steps: bool = True
    shapes: bool = True
    stacks: bool = False
    syncs: bool = False
    watchdog: bool = False
    seed: int = 1
    clocks_us: float = 0.0
    """How far the clock of each rank is from that of the one before it."""
    warm: int = 0
    """Steps that run before the profiler records; not for faults that happen once."""
    only_rank: int = -1
    """The one rank whose trace is at hand; -1 for all."""
    note: str = ""

    def program(self, without: Collection[str] = ()) -> Program:
        """The program with all its faults but some."""
        unknown = self.faults.keys() - FAULTS.keys()
        assert not unknown, f"no such fault: {unknown}"
        options: dict[str, Any] = self.options
        found = built(self.workload, self.gpu, options)
        found = replace(found, steps=found.steps + self.warm, warm=self.warm)
        for name, change in FAULTS.items():
            if name in self.faults and name not in without:
                found = change(found, self.faults[name])
        return replace(found, watchdog=self.watchdog)

    @property
    def says_flops(self) -> bool:
        """Whether the trace says what its matmuls had to do; convolutions only since 2.1."""
        return self.shapes and (self.version == "new" or "resnet" not in self.workload)

    def schema(self) -> Schema:
        return Schema(version=self.version, steps=self.steps, shapes=self.shapes,
                      stacks=self.stacks, syncs=self.syncs, clocks_us=self.clocks_us)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a case."""

    causes: frozenset[str]
    """A first finding with one of these is right."""
    worth_us: float | None
    """What curing the first fault saves; None where no fault bounds the run."""
    duration_us: float
    filled: float
    """Share of the run in which a kernel ran that does not communicate, mean over ranks."""
    by_cause: dict[str, float] = field(default_factory=dict)
    """Cause → what curing all of its faults saves."""

    def worth_of(self, cause: str) -> float | None:
        """What the cure of a right finding saves; None where no fault bounds the run."""
        if self.worth_us is None:
            return None
        if cause not in self.by_cause and self.by_cause.keys() & self.causes:
            return None  # a roof, where the fault's own cause is as right
        return self.by_cause.get(cause, self.worth_us)


@cache
def cases() -> dict[str, Case]:
    """Every labelled case by its name."""
    rows = tomllib.loads(CASES.read_text())
    return {name: msgspec.convert(row, Case) for name, row in rows.items()}


def truth_of(case: Case, run: Run | None = None) -> Truth:
    """Run the case, and again without each of its faults."""
    run = run or simulate(case.program(), case.seed)
    whole = run.recorded_us
    assert not (case.warm and ONCE & case.faults.keys()), "before the window, or in it?"
    if not run.program.on_gpu:
        return Truth(frozenset({"cpu-only"}), None, whole, 0.0)
    length = run.duration_us - _warm_up(case, run.program)
    recorded = whole / length  # a warm trace also holds work that was queued before it began
    worth = {
        name: recorded * (length - _length(case, case.program(without={name})))
        for name in case.faults
    }
    first = max(worth, key=lambda name: worth[name], default=None)
    by_cause = _worth_of_causes(case, length, recorded, worth)
    most = max(by_cause.values(), default=0.0)
    dearest = max(worth.values(), default=0.0)
    filled = filled_by_kernels(run)
    kernels = roofs_of(run, told=case.says_flops)
    if filled_by_kernels(run, talk=True) - filled > MATTERS:  # by its nature, not by a fault
        piped = run.program.parallel.kind == "pipeline"
        kernels |= {"pipeline-bubble" if piped else "communication-bound"}
    if first is None or most < BORDER[0] * whole:
        return Truth(kernels, None, whole, filled, by_cause)
    close = {name for name in worth if _lasting(name, worth[name], run) * CLOSE >= dearest}
    causes = {cause for name in close for cause in CAUSES[name]}
    causes |= {cause for cause, saved in by_cause.items() if saved * CLOSE >= most}
    causes |= _overlapping(case, run, worth, close)
    if most < BORDER[1] * whole:
        return Truth(frozenset(causes | kernels), None, whole, filled, by_cause)
    knowable = case.says_flops or first not in OF_KERNELS
    knowable &= first != "evaluation"  # it is work; better kernels are worth something else
    if first == "start-up" and not case.steps:  # before the first kernel it is no part of a run
        knowable = False
    if first in FIRST_ONLY and _once(case, first, length) < BORDER[0] * whole:
        causes |= kernels  # the GPU waits for the first step, and for no other
        knowable = False
    return Truth(frozenset(causes), most if knowable else None, whole, filled, by_cause)


def _length(case: Case, program: Program) -> float:
    """How long the program's recorded steps take: what they add to the steps before."""
    return simulate(program, case.seed).duration_us - _warm_up(case, program)


def _warm_up(case: Case, program: Program) -> float:
    """How long the program takes for the steps before those that are recorded."""
    if not case.warm:
        return 0.0
    return simulate(replace(program, steps=case.warm, warm=0), case.seed).duration_us


def _worth_of_causes(
    case: Case, length_us: float, recorded: float, worth: dict[str, float]
) -> dict[str, float]:
    """What each cause is worth with all its faults gone at once; one fault is worth what it is."""
    found = {}
    for cause in sorted({cause for name in worth for cause in CAUSES[name]}):
        own = {name for name in worth if cause in CAUSES[name]}
        if len(own) == 1:
            found[cause] = worth[own.pop()]
        else:
            saved = length_us - _length(case, case.program(without=own))
            found[cause] = recorded * saved
    return found


def _once(case: Case, fault: str, length_us: float) -> float:
    """What a fault costs the same number of steps later, when the first one is over."""
    twice, cured = case.program(), case.program(without={fault})
    longer = _length(case, replace(twice, steps=2 * twice.steps)) - length_us
    without = _length(case, replace(cured, steps=2 * cured.steps)) - _length(case, cured)
    return longer - without


def _lasting(name: str, worth_us: float, run: Run) -> float:
    """The worth as in a long run: a stop between steps costs nothing before the first."""
    steps = run.program.steps
    between = name in {"item-step", "poll-step"} and steps > 1 and not run.program.warm
    return worth_us * steps / (steps - 1) if between else worth_us


def _overlapping(case: Case, run: Run, worth: dict[str, float], first: set[str]) -> set[str]:
    """Causes that the vocabulary allows too, each for a reason of the machine."""
    found = set()
    host = case.program().host
    usual = host.dispatch_us + host.launch_us + host.python_us
    if "eager" in first and usual > SLOW_OPERATOR_US:
        found.add("host-bound")
    if first & {"unbucketed", "small-reduces"}:
        sent = [one.meeting.transfer_us for one in run.work if one.meeting]
        if sum(sent) < HOST_COLLECTIVE_US * len(sent):  # starting them takes longer than they do
            found |= {"host-bound", "launch-bound"}
    if first & set(OF_KERNELS) and not case.says_flops:
        found |= {"gpu-bound", *roofs_of(run, told=False)}  # nothing shows how slow they are
    if "side-stream" in first:
        found |= {"gpu-bound", *roofs_of(run, told=False)}  # the GPU works: on the other stream
    if filled_by_kernels(run) < NEARLY_EMPTY:
        found |= {"empty-window", "hardly-any-gpu-work"}
    if case.options.get("steps") == 1 and first & {"prepare", "finish", "slow-loader"}:
        found.add("host-bound-start-up")  # one step cannot say what comes again
    if case.only_rank >= 0 and first & {"late-host", "late-gpu", "few-passes"}:
        found |= {"communication-bound", "rank-skew"}  # one cannot say for whom it waits
    if "slow-python" in first and host.slow_python_us < usual:
        found.add("launch-bound")
    if "pageable" in first:
        copied = sum(
            (one.end_us or 0.0) - (one.start_us or 0.0)
            for one in run.work
            if "Pageable" in one.name
        )
        if worth["pageable"] > 1.5 * copied / len(run.ranks):  # more is waited than copied
            found.add("sync-bound")
    return found


def filled_by_kernels(run: Run, *, talk: bool = False) -> float:
    """Share of the run in which kernels ran, mean over ranks; collectives only with `talk`."""
    covered = 0.0
    for rank in run.ranks:
        until = max(run.recorded_from_us(rank.number), 0.0)
        own = sorted(
            (one.start_us or 0.0, one.end_us or 0.0)
            for one in run.work
            if one.rank == rank.number and one.kind == "kernel" and (talk or not one.meeting)
        )
        for start, end in own:
            covered += max(end - max(start, until), 0.0)
            until = max(until, end)
    return covered / len(run.ranks) / run.recorded_us


def roofs_of(run: Run, *, told: bool) -> frozenset[str]:
    """Under which roof the kernels' time lies; both where they are close.

    `told` is whether the trace says enough to know it.
    """
    gpu = gpu_of(run.program.gpu)
    time: Counter[str] = Counter()
    for op in run.program.ops:
        for kernel in op.all_kernels():
            time[f"{kernel.bound(gpu)}-bound"] += kernel.time_us(gpu)
    most = max(time.values())
    found = {bound for bound, spent in time.items() if 1.5 * spent >= most}
    clear = most >= CLEAR * sum(time.values())
    return frozenset(found | (set() if told and clear else {"gpu-bound"}))
