"""From what the child reported to a `StepProfile`: phases, rates, operators on the roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from ridgeline.errors import RidgelineError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.hardware.core_pressure import WAIT_VARIABLES
from ridgeline.hardware.environment import environment
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.live.operator_times import model_flops_utilisation, operators_of, small_share
from ridgeline.measure.live.steps import growth_per_step, phases_of, tail_facts
from ridgeline.measure.wire import Facts, Report
from ridgeline.records import (
    Distribution,
    MemoryPoint,
    MemorySplit,
    SideEffects,
    Site,
    StepProfile,
)

_SPEED_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "OMP_PROC_BIND", "LD_PRELOAD",
    *WAIT_VARIABLES,
    "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR", "ONEDNN_DEFAULT_FPMATH_MODE",
    "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip


_BUSY_SHARE = 0.15
"""Share of the step without a core from which the reader is warned."""


def assemble(
    command: list[str], windows: RunWindows, ceilings: Ceilings | None
) -> list[StepProfile]:
    """One profile per rank."""
    return [_profile(command, windows, rank, ceilings) for rank in range(len(windows.timed))]


def _profile(
    command: list[str], windows: RunWindows, rank: int, ceilings: Ceilings | None
) -> StepProfile:
    timed = windows.timed[rank]
    facts = _latest_facts(windows, rank)
    warnings = list(windows.warnings)
    if ceilings is not None and ceilings.device != facts.device_name.split()[0]:
        warnings.append(
            f"the model is on {facts.device_name}, but the probed peaks are those of "
            f"{ceilings.device}: no limits are given"
        )
        ceilings = None
    seconds = [step.seconds for step in timed.steps]
    operator_look = windows.look("operators", rank)
    profiler_look = windows.look("profiler", rank)
    sampler_look = windows.look("sampler", rank)
    exposed = profiler_look.communication if profiler_look else {}
    phases = phases_of(timed.steps, exposed.get("exposed", 0.0), exposed.get("copy", 0.0))
    operators = operators_of(operator_look, profiler_look, phases, ceilings)
    median = Distribution.of(seconds).p50
    flops = sum(op.flops for op in operators)
    limit = sum(op.limit_seconds for op in operators)
    total = sum(seconds)
    samples = sum(step.samples for step in timed.steps)
    tokens = sum(step.tokens for step in timed.steps)
    peak, split, timeline = _memory(operator_look, profiler_look)
    calls = sum(op.calls for op in operators)
    mfu = model_flops_utilisation(operators, flops, median, ceilings)
    warnings += _low_peaks_warning(ceilings, mfu)
    return StepProfile(
        kind=facts.kind,
        steps=len(seconds),
        step_seconds=Distribution.of(seconds),
        phases=phases,
        samples_per_second=samples / total if samples else None,
        tokens_per_second=tokens / total if tokens else None,
        peak_memory_bytes=peak,
        device_memory_bytes=facts.device_memory_bytes,
        mfu=mfu if mfu is None or mfu <= 1 else None,
        flops_per_step=flops,
        limit_seconds=limit,
        limit_fraction=min(1.0, limit / median) if median else 0.0,
        memory=split,
        memory_timeline=timeline,
        memory_growth_bytes_per_step=growth_per_step(sampler_look),
        operators=operators[:400],
        operator_calls=calls,
        small_operator_share=small_share(operators, median, ceilings),
        sync_points=[
            *timed.sync_points,  # what was printed; the dispatch mode sees the others
            *(operator_look.sync_points if operator_look else []),
        ],
        hot_lines=sampler_look.hot_lines if sampler_look else [],
        unused_graphs=operator_look.unused_graphs if operator_look else [],
        graph_breaks=facts.graph_breaks,
        models=facts.models,
        optimizers=facts.optimizers,
        loaders=facts.loaders,
        settings=facts.settings,
        habits={**facts.habits, **facts.looked},
        losses=windows.losses[rank],
        gradient_norms=operator_look.gradient_norms if operator_look else [],
        non_finite=_non_finite(windows.losses[rank], operator_look),
        step_samples=seconds,
        tail=tail_facts(timed.steps),
        environment=environment(
            device=facts.device_name,
            torch=facts.torch,
            python=facts.python,
            command=command,
            variables=_SPEED_VARIABLES,
        ),
        rank=rank,
        world_size=windows.ranks,
        warmup_steps=len(windows.warmup_seconds),
        steady=windows.steady,
        warnings=[*warnings, *_busy_warning(facts, Distribution.of(seconds).mean)],
        side_effects=_side_effects(windows.outcome),
    )


def _side_effects(outcome: Outcome | None) -> SideEffects | None:
    if outcome is None:
        return None
    return SideEffects(
        protection=outcome.way,
        files=outcome.count,
        first_files=list(outcome.first),
        unprotected=outcome.unprotected,
        offline=outcome.offline,
    )


def _busy_warning(facts: Facts, step_seconds: float) -> list[str]:
    """A step that waited for a core says little about the script alone."""
    share = facts.settings.cpu_wait_seconds / step_seconds if step_seconds else 0.0
    if share < _BUSY_SHARE:
        return []
    # The report at the window's end waits too: on a crowded machine that can exceed the steps.
    warning = (
        f"the script waited for a free core for {min(share, 1.0):.0%} of the time: other programs "
        "ran, or it has more threads and workers than cores; measure again on a quiet machine"
    )
    return [warning]


def _low_peaks_warning(ceilings: Ceilings | None, mfu: float | None) -> list[str]:
    """Peaks that were probed beside other work lie below what the machine can do."""
    if ceilings is None or not (ceilings.busy or (mfu or 0.0) > 1):
        return []
    share = ceilings.cpu_time_share
    got = f", which got {share:.0%} of the cores," if share is not None and ceilings.busy else ""
    what = f"the probe of this machine's peaks{got} ran beside other work: limits are rough"
    if mfu is not None and mfu > 1:
        what = (
            f"the script computes {mfu:.2f} times as fast as the probed peak: the probe{got} ran "
            "beside other work, and neither MFU nor the limits mean anything"
        )
    return [f"{what}; `ridgeline hardware --probe` on a quiet machine measures them anew"]


def _latest_facts(windows: RunWindows, rank: int) -> Facts:
    """Facts of the timed window, completed by what only the instruments could see."""
    timed = windows.timed[rank].facts
    last = next(
        (
            report.facts
            for name in ("profiler", "operators")
            if (report := windows.look(name, rank)) is not None and report.facts is not None
        ),
        None,
    )
    if timed is None:
        timed = last
    if timed is None:  # what failed there has been noted
        raise RidgelineError(f"what the script uses could not be read: {windows.warnings[-1]}")
    if last is None:
        return timed
    seen = last.settings
    settings = msgspec.structs.replace(
        timed.settings,
        graph_compiles=seen.graph_compiles,
        padding_share=seen.padding_share,
    )
    padding = {_key(loader.site): loader.padding_share for loader in last.loaders}
    loaders = [
        msgspec.structs.replace(loader, padding_share=padding.get(_key(loader.site), 0.0))
        for loader in timed.loaders
    ]
    return msgspec.structs.replace(timed, settings=settings, looked=last.looked, loaders=loaders)


def _key(site: Site | None) -> str:
    return str(site)


def _memory(
    look: Report | None, profiled: Report | None
) -> tuple[int, MemorySplit, list[MemoryPoint]]:
    samples = look.memory if look is not None else []
    points = [MemoryPoint(seconds=s.seconds, bytes=s.total_bytes, phase=s.phase) for s in samples]
    highest = max(samples, key=lambda s: s.total_bytes, default=None)
    peak = look.memory_peak_bytes if look is not None else 0
    if profiled is not None and profiled.memory_peak_bytes:
        peak = profiled.memory_peak_bytes
    if highest is None:
        return peak, _NO_SPLIT, points
    rest = max(0, peak - highest.total_bytes)
    split = MemorySplit(
        weights_bytes=highest.weights_bytes,
        gradients_bytes=highest.gradients_bytes,
        optimizer_bytes=highest.optimizer_bytes,
        activations_bytes=highest.activations_bytes,
        other_bytes=highest.other_bytes + rest,
    )
    return max(peak, highest.total_bytes), split, points


_NO_SPLIT = MemorySplit(
    weights_bytes=0, gradients_bytes=0, optimizer_bytes=0, activations_bytes=0, other_bytes=0
)


def _non_finite(losses: list[float], look: Report | None) -> int:
    bad = sum(1 for loss in losses if not math.isfinite(loss))
    return bad + (look.non_finite if look is not None else 0)


FEW_STEPS = 4


@dataclass(slots=True)
class RunWindows:
    """Everything that one run gave, by kind of window; lists of reports are one per rank."""

    warmup_seconds: list[float] = field(default_factory=list)
    start_seconds: float = 0.0
    """What of the start and the first step is not the budget's."""
    timed: list[Report] = field(default_factory=list)
    slow: list[list[Report]] = field(default_factory=list)
    """Steps of the warm-up that ran one by one."""
    looks: dict[str, list[Report]] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    """Instruments that were asked for, whether they could look or not."""
    losses: list[list[float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seen_steps: int = 0
    forwards_without_steps: bool = False
    """The script called a model but ended without a step."""
    main_model: int | None = None
    """Which of the modules that the first rank called is its model."""
    forwards_seen: int = 0
    """Calls of a model until it trained, on the first rank."""
    infers: bool = False
    """It trains nothing, as far as was told."""
    ended: bool = False
    complete: bool = False
    steady: bool = False
    ranks: int = 1
    device: str = "cpu"
    """What the script said it runs on."""
    output: str = ""
    outcome: Outcome | None = None
    """What the script would have left."""

    def saw(self, reports: list[Report]) -> None:
        """Take note of a block on every rank."""
        if not self.losses:
            self.losses = [[] for _ in reports]
        for losses, report in zip(self.losses, reports, strict=True):
            losses.extend(report.losses)
        self.seen_steps += len(reports[0].steps)
        self.forwards_seen = reports[0].forwards_seen
        self.main_model = reports[0].main_model
        for report in reports:
            if report.facts is not None:
                self.infers = report.facts.kind == "inference"
            self.warnings += [w for w in report.warnings if w not in self.warnings]
        if any(report.ended for report in reports):
            self.ended = True
            self.forwards_without_steps = self.seen_steps == 0 and self.forwards_seen > 0

    def seconds(self) -> list[float]:
        """Seconds of the timed steps, or of the last step before them when there are none."""
        if self.timed and self.timed[0].steps:
            return [step.seconds for step in self.timed[0].steps]
        return [step.seconds for reports in self.slow[-1:] for step in reports[0].steps]

    def fall_back_on(self, first: list[Report]) -> bool:
        """Let the very first step speak where no other ended; False where it tells nothing."""
        if not first or not first[0].steps or first[0].facts is None:
            return False
        self.saw(first)
        self.let_speak(first)
        return True

    def let_speak(self, first: list[Report]) -> None:
        """Take the very first step for the one that is timed."""
        self.slow.append(first)
        self.warmup_seconds = [step.seconds for step in first[0].steps]
        self.warnings.append(
            "the one step is the script's first, timed from the first call of a model on: what "
            "happens only once (allocating, compiling) is in it, and what comes before a call is "
            "not"
        )

    def settle(self) -> None:
        """Let the last slow step speak where none could be timed."""
        if not (self.timed and self.timed[0].steps) and self.seconds():
            self.timed = self.slow[-1]
            self.warmup_seconds = self.warmup_seconds[:-1]
            self.steady = False

    def tell_how_few(self) -> None:
        """Say so where few steps were seen, and what was not looked at for that."""
        few = len(self.seconds())
        if not 0 < few < FEW_STEPS or max(self.seconds()) <= 1.0:
            return
        why, cure = "there was no time for more", "--budget gives it more"
        if self.ended:
            why, cure = "the script ended then", "let it run longer"
        self.warnings.append(
            f"from {few} step{'s' if few > 1 else ''}: {why}, and what one step differs from "
            f"another is not known; {cure}"
        )
        if not self.looks.get("operators"):
            self.warnings.append(
                "operators were not looked at: whether arithmetic, memory or the host bounds "
                "what is computed is not known"
            )

    def look(self, name: str, rank: int) -> Report | None:
        """What an instrument reported on one rank; None when it did not run."""
        reports = self.looks.get(name)
        return reports[rank] if reports else None

    def operators_per_step(self) -> float:
        """Operators of a step on the first rank; 0 where nobody has counted them."""
        look = self.look("operators", 0)
        return sum(one.calls for one in look.operators) / len(look.steps) if look else 0.0
