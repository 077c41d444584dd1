"""A profile with the questions that rules ask of it: shares, gaps, call sites, worth.

Times are those of a typical step. Forward, backward, optimizer and copies do the same work every
step, so their median stands for them and a step that was disturbed does not count. What comes in
bursts (waiting for workers, evaluation, checkpoints) has no typical value but its mean.

Operators are of a kind by their names in PyTorch's dispatcher (`native_functions.yaml`). A name
that is missing here is of none, so a rule that counts a kind errs on the side of finding less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from math import prod

from ridgeline import quantity
from ridgeline.cost.amdahl import speedup_without
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.hardware.storage import StorageRates
from ridgeline.records import Finding, LoaderFacts, ModelFacts, Operator, Site, StepProfile

DENSE_MATMULS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm")
)

CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in ("convolution", "convolution_backward", "mkldnn_convolution", "_convolution")
)

_POINTWISE = frozenset((
    "abs", "add", "addcdiv", "addcmul", "atan", "bitwise_and", "bitwise_not", "bitwise_or",
    "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "div", "elu",
    "elu_backward", "eq", "erf", "exp", "expm1", "fill", "floor", "ge", "gelu", "gelu_backward",
    "gt", "hardsigmoid", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward",
    "le", "leaky_relu", "leaky_relu_backward", "lerp", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "logit", "lt", "masked_fill", "maximum", "minimum", "mish",
    "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "rsub",
    "sigmoid", "sigmoid_backward", "sign", "silu", "silu_backward", "sin", "softplus",
    "softplus_backward", "sqrt", "square", "sub", "tanh", "tanh_backward", "threshold",
    "threshold_backward", "where", "xlogy",
))  # fmt: skip

_REDUCTIONS = frozenset(("amax", "amin", "mean", "std", "sum", "var", "var_mean"))


def is_pointwise(operator: Operator) -> bool:
    """Could a compiler run it in one loop with its pointwise neighbours?

    Casts are not counted: under autocast most of them change weights, which nothing precedes.
    """
    name = operator.name.removeprefix("aten::").rstrip("_")
    return name in _POINTWISE or name in _REDUCTIONS


def is_reduction(operator: Operator) -> bool:
    """Does it sum up what pointwise operators made? It can run inside their loop."""
    return operator.name.removeprefix("aten::") in _REDUCTIONS


def is_on(operator: Operator, shapes: Container[tuple[int, ...]]) -> bool:
    """Are all its tensors of these shapes, or transposes of them?"""
    own = operator.input_shapes()
    return bool(own) and all(shape in shapes or shape[::-1] in shapes for shape in own)


def largest_input(operator: Operator) -> int:
    """Elements of its largest input."""
    return max((prod(shape) for shape in operator.input_shapes()), default=0)


EVERY_STEP = ("copy", "forward", "backward", "optimizer")
"""Phases that do the same work in every step."""
COMPUTE = ("forward", "backward", "optimizer", "other")
"""Phases in which operators run."""
USUAL_DISPATCH = 1e-6
SMALL = 5.0
"""An operator from Python costs about this many bare dispatches before it computes."""
AROUND = 15.0
"""Python, modules and autograd around one operator take up to this many bare dispatches."""
MOST_OVER_LIMIT = 8.0
MOST_SAVED = 0.95
"""No cure is believed to save more of a step than this."""

Evidence = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One rank's profile, the ranks beside it, and what the hardware allows."""

    profile: StepProfile
    ranks: tuple[StepProfile, ...]
    ceilings: Ceilings | None = None
    storage: StorageRates | None = None
    """The disk below the folder in which the script runs."""

    # -- time ------------------------------------------------------------------------------

    def phase_seconds(self, *phases: str) -> float:
        """Seconds of a typical step in these phases."""
        return sum(self._typical(phase) for phase in phases)

    def _typical(self, phase: str) -> float:
        spread = self.profile.phases.get(phase)
        if spread is None:
            return 0.0
        return spread.p50 if phase in EVERY_STEP and spread.p50 > 0 else spread.mean

    @property
    def step_seconds(self) -> float:
        """Seconds of a typical step."""
        return self.phase_seconds(*self.profile.phases) or self.profile.step_seconds.mean

    def share(self, seconds: float) -> float:
        """Fraction of the typical step, between 0 and 1."""
        return min(1.0, max(0.0, seconds / self.step_seconds)) if self.step_seconds else 0.0

    def of_mean(self, seconds: float) -> float:
        """Seconds of a typical step, for what was counted as a mean over all timed steps."""
        mean = self.profile.step_seconds.mean
        return seconds * min(1.0, self.step_seconds / mean) if mean else 0.0

    @property
    def asleep_seconds(self) -> float:
        """Seconds outside of the model in which the process waits for something outside of it.

        No thread computes, and none waits for a core: a request is to come, an answer of another
        process, a file, a timer. It is a lower bound: threads that compute side by side count as
        if they did so one after the other. 0 where the device computes while the host sleeps.
        """
        settings = self.profile.settings
        if self.on_gpu or not settings.cpu_seconds:
            return 0.0
        awake = settings.cpu_seconds + settings.cpu_wait_seconds + settings.peer_wait_seconds
        asleep = self.of_mean(max(0.0, self.profile.step_seconds.mean - awake))
        elsewhere = self.phase_seconds("data", "copy", "communication")
        return min(self.phase_seconds("other"), max(0.0, asleep - elsewhere))

    # -- operators -------------------------------------------------------------------------

    def operators(
        self,
        names: Collection[str] | None = None,
        *,
        phases: Collection[str] | None = None,
        dtype: str | None = None,
    ) -> list[Operator]:
        """Operators of these names, phases and dtype, most expensive first."""
        return [
            op
            for op in self.profile.operators
            if (names is None or op.name in names)
            and (phases is None or op.phase in phases)
            and (dtype is None or op.dtype == dtype)
        ]

    @property
    def dispatch_seconds(self) -> float:
        """The least that starting one operator costs the host."""
        return self.ceilings.dispatch_seconds if self.ceilings is not None else USUAL_DISPATCH

    def small_operators(self, *phases: str) -> list[Operator]:
        """Operators whose work is less than their start: a few bare dispatches, by the roofline."""
        return [
            op
            for op in self.operators(phases=phases)
            if op.bound == "overhead"
            or (op.bound and op.limit_seconds < SMALL * self.dispatch_seconds * op.calls)
        ]

    def believed_seconds(self, operator: Operator) -> float:
        """Its time, as far as its own work can explain it.

        On a CPU whose cores others use, short parallel operators wait for each other many times
        longer than they compute; what is far above the roofline says nothing about the script.
        """
        least = max(operator.limit_seconds, self.dispatch_seconds * operator.calls)
        return min(operator.seconds, MOST_OVER_LIMIT * least)

    def around_seconds(self, operators: Iterable[Operator], *phases: str) -> float:
        """Gaps in these phases, as far as Python and dispatch around the operators explain them."""
        most = AROUND * self.dispatch_seconds * total_calls(operators)
        return min(self.gap_seconds(*phases), most)

    def weight_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of all trained weights: the optimizer's operators name them."""
        return {
            shape for op in self.operators(phases=("optimizer",)) for shape in op.input_shapes()
        }

    def gap_seconds(self, *phases: str) -> float:
        """Time of these phases in which no operator ran: Python, dispatch, waiting."""
        return sum(
            max(0.0, self._typical(phase) - total_seconds(self.operators(phases=(phase,))))
            for phase in phases
        )

    # -- places ----------------------------------------------------------------------------

    def hot_share(self, sites: Iterable[Site]) -> float:
        """Fraction of the step in which the host was on one of these lines."""
        places = {(site.file, site.line) for site in sites}
        lines = self.profile.hot_lines
        return sum(line.share for line in lines if (line.site.file, line.site.line) in places)

    def hottest(self, *phases: str, at_most: int = 3) -> list[str]:
        """Lines of the user's code that the host spent these phases on, `file:line`."""
        seen: Counter[str] = Counter()
        for line in self.profile.hot_lines:
            if line.phase in phases and line.site.file:
                seen[str(line.site)] += round(1e6 * line.share)
        return [place for place, _ in seen.most_common(at_most)]

    # -- what it is ------------------------------------------------------------------------

    @property
    def model(self) -> ModelFacts | None:
        """The largest model of the script."""
        return self.profile.models[0] if self.profile.models else None

    @property
    def on_gpu(self) -> bool:
        """Does the largest model sit on a GPU?"""
        return self.model is not None and self.model.device.startswith("cuda")

    @property
    def loader(self) -> LoaderFacts | None:
        """The loader that the step waits for most."""
        return max(self.profile.loaders, key=lambda loader: loader.wait_seconds, default=None)

    @property
    def compiled(self) -> bool:
        """Does the largest model run compiled?"""
        return self.model is not None and self.model.compiled

    def peak(self, dtype: str) -> float | None:
        """Probed matmul FLOP/s of a dtype as torch names it."""
        return self.ceilings.matmul_peak(dtype) if self.ceilings is not None else None

    # -- findings --------------------------------------------------------------------------

    def finding(
        self,
        cause: str,
        *,
        touched_seconds: float,
        saves_seconds: tuple[float, float],
        confidence: float,
        summary: str,
        evidence: Evidence,
        cure: str,
        effort: str,
        where: Iterable[Site | str | None] = (),
        technique: str | None = None,
    ) -> list[Finding]:
        """A finding whose gain follows from what its cure saves; none when that is nothing.

        `saves_seconds` are per step, pessimistic and optimistic; the rest is Amdahl's law.
        """
        step = self.step_seconds
        low, high = (min(max(s, 0.0), MOST_SAVED * step) for s in saves_seconds)
        if high <= 0.0:
            return []
        return [
            Finding(
                cause=cause,
                share=self.share(touched_seconds),
                gain_low=speedup_without(min(low, high), step),
                gain_high=speedup_without(high, step),
                confidence=confidence,
                summary=summary,
                evidence=evidence,
                where=places(where),
                cure=cure,
                effort=effort,
                technique=technique,
            )
        ]


def warning(
    cause: str,
    *,
    confidence: float,
    summary: str,
    evidence: Evidence,
    cure: str,
    effort: str,
    where: Iterable[Site | str | None] = (),
    technique: str | None = None,
) -> list[Finding]:
    """A finding that is not about speed: it claims no gain."""
    return [
        Finding(
            cause=cause,
            share=0.0,
            gain_low=1.0,
            gain_high=1.0,
            confidence=confidence,
            summary=summary,
            evidence=evidence,
            where=places(where),
            cure=cure,
            effort=effort,
            technique=technique,
        )
    ]


def places(sites: Iterable[Site | str | None]) -> list[str]:
    """`file:line` of each known site, once."""
    return list(dict.fromkeys(str(site) for site in sites if site is not None))


def total_seconds(operators: Iterable[Operator]) -> float:
    """Seconds per step in these operators."""
    return sum(op.seconds for op in operators)


def total_calls(operators: Iterable[Operator]) -> float:
    """Calls per step of these operators."""
    return sum(op.calls for op in operators)


percent, duration, megabytes = quantity.percent, quantity.seconds, quantity.memory
"""How numbers are written in the sentences of a finding."""
