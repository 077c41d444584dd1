"""One file per optimisation, all of one shape. `tune` finds them here and names none of them.

A technique module defines

    CARD                                 what it is, what it costs, how its result is verified
    applies(context) -> Applicability    does it fit this script, and why not
    predict(context, options) -> Gain    what it should bring, before it is tried
    apply(points, options) -> Undo       change the running script through `Points`
    edits(context, options) -> [Edit]    the lines a person would write, at the recorded sites
    options(context) -> [Options]        (optional) settings worth trying; default one, `{}`
    environment(options) -> {name: value}  (optional) variables for the process, set at its start

A technique that is one keyword argument gets `apply` and `edits` from `set_argument`.

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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, cast

from ridgeline import kernels
from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.child.points import Points, edit_arguments
from ridgeline.measure.wire import Applied
from ridgeline.patches import Undo
from ridgeline.records import Finding, LoaderFacts, ModelFacts, Site, StepProfile
from ridgeline.records.edits import AtStart, Edit, FirstOf, ReplaceCall, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.records.matmuls import MATMULS
from ridgeline.runtimes import Precision, runtime

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


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
        command = [os.path.normpath(w) for w in profile.environment.command if w.endswith(".py")]
        sites = [model.forward_site for model in profile.models]
        sites += [switches.backward_site]
        sites += [site for o in profile.optimizers for site in (o.site, o.step_site)]
        sites += [loader.site for loader in profile.loaders]
        sites += [Site(file=word, line=1) for word in command[:1]]
        sites += [hot.site for hot in profile.hot_lines]
        return tuple(dict.fromkeys(site.file for site in sites if site is not None))


_TRAINER_SETTINGS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")


def trainer_setting(context: Context, keyword: str, value: str) -> tuple[Edit, ...]:
    """The alternative for a script that leaves its loop to a Hugging Face `Trainer`."""
    return tuple(
        SetArgument(files=context.files, callee=callee, keyword=keyword, value=value)
        for callee in _TRAINER_SETTINGS
    )


Apply = Callable[[Points, Options], Undo]
Edits = Callable[[Context, Options], list[Edit]]
Value = bool | int
_CONSTRUCTORS = {
    "DistributedDataParallel": "torch.nn.parallel:DistributedDataParallel.__init__",
}
"""Classes without a callback list in `Points` → what is patched to see them constructed."""


def set_argument(
    card: Card,
    owner: str,
    keyword: str,
    value: Value | Callable[[Options], Value],
    *,
    fits: Callable[[Mapping[str, Any]], bool] | None = None,
    lacks: Callable[[LoaderFacts], bool] | None = None,
) -> tuple[Apply, Edits]:
    """The `apply` and `edits` of a technique that is one keyword argument of a constructor.

    Args:
        card: What the technique says of itself.
        owner: The class: `DataLoader`, or one of `_CONSTRUCTORS`.
        keyword: Its argument.
        value: What the argument is set to, or how that follows from the options.
        fits: Of the arguments of a construction: is it one to change? None: every one is.
        lacks: Of a loader that was seen: should a person write it there? None: wherever the
            class is called in the user's files.
    """

    def value_of(options: Options) -> Value:
        return value(options) if callable(value) else value

    def apply(points: Points, options: Options) -> Undo:
        """Set the argument as the object is constructed."""
        wanted, changed = value_of(options), 0

        def set_it(arguments: dict[str, Any]) -> None:
            nonlocal changed
            if arguments.get(keyword, False) == wanted or not (fits is None or fits(arguments)):
                return
            arguments[keyword] = wanted
            changed += 1
            points.changed(card.name, f"{keyword}={wanted} in {changed} {owner}(s)")

        set_it.__module__ = _module_of(card)
        if owner in _CONSTRUCTORS:
            return edit_arguments(_CONSTRUCTORS[owner], set_it)
        points.on_loader.append(set_it)
        return lambda: points.on_loader.remove(set_it)

    def edits(context: Context, options: Options) -> list[Edit]:
        """One argument of the constructor."""
        written = str(value_of(options))
        if lacks is None:
            return [SetArgument(files=context.files, callee=owner, keyword=keyword, value=written)]
        return [
            SetArgument(site=loader.site, callee=owner, keyword=keyword, value=written)
            for loader in context.profile.loaders
            if loader.site is not None and lacks(loader)
        ]

    return apply, edits


PRECISIONS: Mapping[str, Precision] = MappingProxyType({"bf16": "bf16", "int8": "int8"})
"""Option of a technique that is a runtime → what it then computes in; float32 without one."""
_GAINS = {"fp32": (1.0, 2.5), "bf16": (1.0, 4.0), "int8": (1.0, 6.0)}
"""How much faster a forward gets, least and most. Seen on one core, 224² images, batch 1: float32
1.1 (ViT-S in AOTInductor) to 3.8 (MobileNetV3 in ONNX Runtime), bfloat16 1.6 to 2.7, int8 3.5 to
5.3."""


def answer_by(card: Card, name: str) -> RuntimeParts:
    """What a technique consists of that has the model's calls answered by another runtime.

    Args:
        card: What the technique says of itself.
        name: The runtime, as `runtimes/` calls it.
    """

    def applies(context: Context) -> Applicability:
        """An inference script on a CPU, and the runtime is there."""
        profile = context.profile
        if profile.kind != "inference":
            return Applicability(False, "the script trains")
        if context.device != "cpu":
            return Applicability(False, f"the model is on {context.device}, it runs on a CPU")
        if profile.models[0].compiled or profile.settings.graph_compiles:
            return Applicability(False, "the script compiles already")
        missing = runtime(name).missing()
        if missing is not None:
            return Applicability(False, f"not tried: {missing}")
        return Applicability(True, "")

    def options(context: Context) -> list[Options]:
        """float32; what the machine multiplies faster; int8 with ranges of the script's inputs."""
        offered = runtime(name).CARD.precisions
        single, half = context.peak("fp32"), context.peak("bf16")
        found: list[Options] = [{}]
        if "bf16" in offered and (single is None or half is None or half > 1.1 * single):
            found.append({"bf16": True})
        if "int8" in offered:
            found.append({"int8": True})
        return found

    def predict(context: Context, options: Options) -> Gain:
        """Fused operators and no dispatch, in the precision that is asked for."""
        return amdahl(context.phase_share("forward"), *_GAINS[_precision(options)])

    def apply(points: Points, options: Options) -> Undo:
        """Put the runtime in the place of each outermost model's call."""
        replaced: list[nn.Module] = []

        def replace(module: nn.Module) -> None:
            from ridgeline.measure.child.runtime_call import RuntimeCall

            if module._compiled_call_impl is not None:
                return
            answering = RuntimeCall(points, card.name, module, runtime(name), _precision(options))
            module._compiled_call_impl = answering
            replaced.append(module)
            if points.time_compiled_call is not None:
                points.time_compiled_call(module)

        replace.__module__ = _module_of(card)
        points.on_model.append(replace)

        def undo() -> None:
            points.on_model.remove(replace)
            for module in replaced:
                module._compiled_call_impl = None

        return undo

    return RuntimeParts(applies, options, predict, apply)


class RuntimeParts(NamedTuple):
    """The functions of a technique that is a runtime."""

    applies: Callable[[Context], Applicability]
    options: Callable[[Context], list[Options]]
    predict: Callable[[Context, Options], Gain]
    apply: Apply


def _precision(options: Options) -> Precision:
    return next((PRECISIONS[option] for option in options if options[option]), "fp32")


def set_switch(
    points: Points, card: Card, read: Callable[[], T], write: Callable[[T], object], wanted: T
) -> Undo:
    """Set a global switch when the first model is about to run, after the script's own setting.

    Args:
        points: Where the technique is applied.
        card: What the technique says of itself.
        read: Tells how the switch stands.
        write: Sets it.
        wanted: What it is set to.
    """
    before: list[T] = []

    def switch(module: nn.Module) -> None:
        now = read()
        if now == wanted:
            return
        before.append(now)
        write(wanted)
        points.changed(card.name, f"{card.title}: {now} → {wanted}")

    switch.__module__ = _module_of(card)
    points.on_model.append(switch)

    def undo() -> None:
        points.on_model.remove(switch)
        if before:
            write(before[0])

    return undo


def set_by_call(context: Context, setter: str, value: str) -> list[Edit]:
    """Another value where the script calls this function of torch, or else a call of it."""
    there = ReplaceCall(files=context.files, callee=setter, code=f"{{func}}({value})")
    new = AtStart(files=context.files, code=f"torch.{setter}({value})")
    return [FirstOf(edits=(there, new))]


def _module_of(card: Card) -> str:
    """The module of a technique, by which `Points` tells whose callback has failed."""
    return f"{__name__}.{card.name.replace('-', '_')}"


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
    for info in pkgutil.iter_modules(__path__):
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
