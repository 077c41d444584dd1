"""One file per optimisation, all of one shape. `tune` finds them here and names none of them.

A technique module defines

    CARD                                 what it is, what it costs, how its result is verified
    applies(context) -> Applicability    does it fit this script, and why not
    predict(context, options) -> Gain    what it should bring, before it is tried
    apply(points, options) -> Undo       change the running script through `Points`
    edits(context, options) -> [Edit]    the lines a person would write, at the recorded sites
    options(context) -> [Options]        (optional) settings worth trying; default one, `{}`
    environment(options) -> {name: value}  (optional) variables for the process, set at its start

A technique of a kind that there are several of (one keyword argument, one switch, one runtime) gets
its functions from `kinds/`.

What may not enter: another technique, the report, the search over techniques. Order and
conflict are traits on the card. `applies`, `predict` and `edits` run in the parent on a
`StepProfile` and import no torch; `apply` runs inside the script's process.
Start reading at `fused_optimizer.py`; the list is the folder: a new file is a new technique.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

from ridgeline import kernels
from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.child.points import Points
from ridgeline.measure.wire import Applied
from ridgeline.patches import Undo
from ridgeline.records import Finding, ModelFacts, Site, StepProfile
from ridgeline.records.edits import Edit, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.records.matmuls import MATMULS
from ridgeline.records.measurement import script_of


class Stage(IntEnum):
    """The order in which a stack is applied: what must be there before what."""

    SETTINGS = 0
    INPUT = 1
    LAYOUT = 2
    MEMORY = 3
    PRECISION = 4
    OPTIMIZER = 5
    COMMUNICATION = 6
    COMPILE = 7
    GRAPH = 8
    RUNTIME = 9


Equivalence = Literal["bit-equal", "rounding", "reduced-precision", "quantised", "statistical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a reader wants to know of a technique before trying it."""

    name: str
    """Kebab case; the file's name with underscores."""
    title: str
    cures: tuple[str, ...]
    """Causes of findings that it cures."""
    costs: str
    """What it costs in memory, start-up time, exactness or readability."""
    source: str
    """Where it comes from: documentation, paper and section."""
    equivalence: Equivalence
    """What it may do to the training result; how its losses are compared."""
    stage: Stage
    slot: str | None = None
    """Techniques in one slot exclude each other."""
    opaque: bool = False
    """The model runs outside of torch with it: a profile does not see its operators, so what
    else would do its work is tried in its place, and not judged by that profile."""
    required: Mapping[str, type] = field(default_factory=dict)
    """Options without which it cannot be applied, and their types."""
    optional: Mapping[str, type] = field(default_factory=dict)
    """Options that it also takes."""
    equivalence_with: Mapping[str, Equivalence] = field(default_factory=dict)
    """The equivalence that holds instead where an option is set."""
    moves_work: bool = False
    """It gives work to other threads or processes, or takes it from them: the CPU time of the
    script's process says nothing of its step."""
    breaks_with: tuple[str, ...] = ()
    """What stands in the error of a script that it breaks: of a stack that fails with one of
    these, this is the member to leave out."""

    @property
    def module(self) -> str:
        """The technique's module, by which `Points` tells whose callback has failed."""
        return f"{__name__}.{self.name.replace('-', '_')}"

    def equivalence_of(self, options: Options) -> Equivalence:
        """What it may do to the training result with these options."""
        return next(
            (
                equivalence
                for name, equivalence in self.equivalence_with.items()
                if options.get(name)
            ),
            self.equivalence,
        )

    def check(self, options: Options) -> None:
        """Raise InputError unless these options can be applied."""
        known = {**self.required, **self.optional}
        for name, value in options.items():
            if name not in known:
                takes = f"it takes {', '.join(known)}" if known else "it takes none"
                raise InputError(f"{self.name}: no option {name!r}; {takes}")
            wanted = known[name].__name__
            if type(value) is not known[name] and (wanted, type(value)) != ("float", int):
                raise InputError(
                    f"{self.name}: option {name} is {value!r}; it must be of type {wanted}"
                )
        missing = [name for name in self.required if name not in options]
        if missing:
            raise InputError(f"{self.name}: option {missing[0]!r} is missing")


_DISPATCHES_OF_A_CAST = 3
"""An empty tensor, the copy, and what autograd notes of it."""
_PASSED_BY_A_CAST = 0.5
"""Bytes read and written over those of a matmul, whose float32 matrices are three: 6/4 of one."""


class Applicability(NamedTuple):
    """Does a technique fit, and why not."""

    ok: bool
    reason: str


class Gain(NamedTuple):
    """Expected speed-up of the whole step: 1.0 is none."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """All that a technique may know when it judges."""

    profile: StepProfile
    findings: tuple[Finding, ...] = ()
    ceilings: Ceilings | None = None
    stack: Mapping[str, Options] | None = None
    """Techniques already in the stack, with their options."""
    changed_at: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    """Technique → the lines of the script that it took effect at, where it says so."""

    def phase_share(self, *phases: str) -> float:
        """Share of the mean step spent in these phases."""
        total = self.profile.step_seconds.mean
        spent = sum(self.profile.phases[p].mean for p in phases if p in self.profile.phases)
        return spent / total if total else 0.0

    def operator_share(self, *names: str, dtype: str | None = None) -> float:
        """Share of the mean step in operators of these names (and of this dtype)."""
        seconds = sum(
            op.seconds
            for op in self.profile.operators
            if op.name in names and (dtype is None or op.dtype == dtype)
        )
        return min(1.0, seconds / self.profile.step_seconds.mean)

    def matmul_share(self, dtype: str | None = None) -> float:
        """Share of the mean step in matmuls, convolutions and fused attention."""
        return self.operator_share(*MATMULS, dtype=dtype)

    def lacks(self, operators: str) -> Applicability:
        """There are none of these, or nobody knows: there was no time to look at operators."""
        if not self.profile.operators:
            return Applicability(False, f"whether there are {operators} was not looked at")
        return Applicability(False, f"no {operators} to speak of")

    def gain_of_matmuls(
        self,
        number_format: str,
        ratio: float,
        *,
        casts: int = 0,
        apart: Collection[str] = (),
        others: float = 0.0,
    ) -> float:
        """Speed-up of the whole step when its float32 matmuls run in another number format.

        Args:
            number_format: As the probed ceilings name it; on a CPU no matmul takes less time than a
                small one in it.
            ratio: Of the rates, where a matmul is large.
            casts: Conversions around each, of one of its three matrices: on a CPU three
                dispatches and a pass through memory that reads four bytes and writes two.
            apart: Operators that are left as they are.
            others: Share of the step by which something else shrinks.
        """
        floor = cast = cast_byte = 0.0
        if self.device == "cpu" and self.ceilings is not None:
            floor = self.ceilings.matmul_floor_seconds.get(number_format, 0.0)
            cast = _DISPATCHES_OF_A_CAST * self.ceilings.dispatch_autograd_seconds
            cast_byte = _PASSED_BY_A_CAST / self.ceilings.bandwidth_bytes_per_second
        step, before, after = self.profile.step_seconds.mean, 0.0, 0.0
        for op in self.profile.operators:
            if op.name not in MATMULS or op.dtype != "float32" or op.name in apart:
                continue
            before += op.seconds
            after += max(op.seconds / ratio, op.calls * floor)
            after += casts * (op.calls * cast + op.bytes * cast_byte)
        saved = (before - after) / max(before, step)
        return 1 / max(1 - saved - others, 1e-3)

    def shapes_vary(self) -> bool:
        """Do the matmuls of the forward see other shapes from one step to the next?

        An operator at fixed shapes runs a whole number of times per step.
        """
        forward = [op for op in self.profile.operators if op.phase == "forward" and op.flops]
        odd = sum(1 for op in forward if abs(op.calls - round(op.calls)) > 0.05)
        return odd > 0.5 * len(forward) > 0

    def peak(self, number_format: str) -> float | None:
        """Probed matmul peak, e.g. of `bf16`, in FLOP per second; None when not measured."""
        if self.ceilings is None:
            return None
        return self.ceilings.matmul_flops_per_second.get(number_format)

    @property
    def data_parallel_models(self) -> list[ModelFacts]:
        """Models wrapped in `DistributedDataParallel`."""
        return [m for m in self.profile.models if m.wrapper == "DistributedDataParallel"]

    @property
    def device(self) -> str:
        """The device, `cpu` or `cuda`, where the largest model sits."""
        models = self.profile.models
        return models[0].device.split(":")[0] if models else "cpu"

    def has_finding(self, cause: str) -> bool:
        """Did a diagnosis find this cause?"""
        return any(finding.cause == cause for finding in self.findings)

    @property
    def files(self) -> tuple[str, ...]:
        """The user's files that the profile names; the one that calls the model first."""
        profile, switches = self.profile, self.profile.settings
        script = script_of(profile.environment.command)
        sites = [model.forward_site for model in profile.models]
        sites += [switches.backward_site]
        sites += [site for o in profile.optimizers for site in (o.site, o.step_site)]
        sites += [loader.site for loader in profile.loaders]
        sites += [Site(file=os.path.normpath(script), line=1)] if script is not None else []
        sites += [hot.site for hot in profile.hot_lines]
        return tuple(dict.fromkeys(site.file for site in sites if site is not None))


_TRAINER_SETTINGS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")


def trainer_setting(context: Context, keyword: str, value: str) -> tuple[Edit, ...]:
    """The alternative for a script that leaves its loop to a Hugging Face `Trainer`."""
    return tuple(
        SetArgument(files=context.files, callee=callee, keyword=keyword, value=value)
        for callee in _TRAINER_SETTINGS
    )


def source_of_kernel(name: str) -> str:
    """The file of a kernel that is plain PyTorch, without its docstring: to stand in a script."""
    text = Path(kernels.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    first = ast.parse(text).body[1]
    return "\n".join(text.splitlines()[first.lineno - 1 :])


class Technique(Protocol):
    """The shape of a technique module."""

    CARD: Card

    def applies(self, context: Context) -> Applicability:
        """Does it fit this script?"""

    def predict(self, context: Context, options: Options) -> Gain:
        """What it should bring."""

    def apply(self, points: Points, options: Options) -> Undo:
        """Change the running script; returns how to take it back."""

    def edits(self, context: Context, options: Options) -> list[Edit]:
        """The lines a person would write."""


def environment_of(stack: Iterable[Applied]) -> dict[str, str]:
    """The variables that a stack wants set before its process loads any library."""
    found: dict[str, str] = {}
    for member in stack:
        module = technique(member.technique)
        wanted = cast("Callable[[Options], dict[str, str]] | None", vars(module).get("environment"))
        found |= wanted(member.options) if wanted is not None else {}
    return found


def options_of(technique: Technique, context: Context) -> list[Options]:
    """The settings of a technique that are worth trying on this script."""
    found = cast("Callable[[Context], list[Options]] | None", getattr(technique, "options", None))
    return found(context) if found is not None else [{}]


@cache
def all_techniques() -> dict[str, Technique]:
    """Every technique by name, found by file."""
    found: dict[str, Technique] = {}
    for info in (one for one in pkgutil.iter_modules(__path__) if not one.ispkg):
        module: Any = importlib.import_module(f"{__name__}.{info.name}")
        name = info.name.replace("_", "-")
        if module.CARD.name != name:
            raise AssertionError(f"{info.name}.py calls itself {module.CARD.name}")
        found[name] = module
    return found


def technique(name: str) -> Technique:
    """The technique of that name; an unknown name lists the known ones."""
    known = all_techniques()
    if name not in known:
        raise InputError(f"no technique {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def amdahl(share: float, low: float, high: float) -> Gain:
    """Speed-up of the whole when `share` of it runs `low` to `high` times faster.

    Amdahl, "Validity of the single processor approach" (AFIPS 1967).

    >>> amdahl(0.5, 2.0, 2.0)
    Gain(low=1.3333333333333333, high=1.3333333333333333)
    """
    share = min(max(share, 0.0), 1.0)
    return Gain(1 / (1 - share + share / low), 1 / (1 - share + share / high))
