"""A module's call, answered by another runtime: recorded, converted, compared, then replaced.

The first call of a shape is an example, and int8 takes its ranges from the script's own first
calls. What was made then answers beside the module, on calls that it was not made from, before it
answers in its place; a program whose answers are too far off never does. Until then, and for every
call that the program does not take, the script gets the module's own answer.

No error leaves: a conversion that fails is a refusal with its line, and the module goes on in
eager PyTorch. So does one in training mode, as far as its layers compute something else in it: a
wrapper that nobody called `eval()` of may hold a model that is in evaluation mode. The files of a
conversion are removed once they are loaded, and random generators stand where they stood.

A script may call several models. What is told of the technique is what all of them do.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ridgeline.errors import RidgelineError, in_words
from ridgeline.measure.child.agreement import OutputAgreement
from ridgeline.measure.child.direct_forward import called_past
from ridgeline.measure.child.guard import note
from ridgeline.measure.child.inputs import tensors_in
from ridgeline.measure.child.points import Points
from ridgeline.runtimes import Free, ModelCall, Precision, Runtime
from ridgeline.runtimes.capture.converting import convert
from ridgeline.runtimes.capture.program import differs_in_training

MOST_PROGRAMS = 4
"""Conversions of a module; shapes that no program takes then stay in eager PyTorch."""
_MOST_SHAPES = 256
"""Shapes that are kept in mind, each with what answers for it."""
_MOST_TOLD = 3
"""Models of which it is told what answers for them."""
_CALIBRATION = (4, 16, 32)
"""Calls to take int8's ranges from: at least, at most, and samples after which it is enough."""
_COMPARISON = (2, 8, 16)
"""Calls to compare int8 on, in the same way."""

Key = tuple[Any, ...]


@dataclass(slots=True)
class LoadedProgram:
    """What answers for calls of one shape."""

    run: Callable[..., Any]
    agreement: OutputAgreement = field(default_factory=OutputAgreement)
    answers: bool = False
    """It was near enough, and answers in the module's place."""
    was_near: bool = False
    """It answers for other shapes already: one call of this one is enough to compare."""


class RuntimeCalls:
    """The models of a script that one runtime answers for, and what is told of them together."""

    def __init__(
        self, points: Points, technique: str, runtime: Runtime, precision: Precision
    ) -> None:
        self._points = points
        self._technique = technique
        self._runtime = runtime
        self._precision = precision
        self._calls: list[RuntimeCall] = []
        self._past = ""
        """What is called in a way that leaves only its parts to answer for, in words."""

    def of(self, module: nn.Module) -> RuntimeCall:
        """What `module(...)` shall run from now on."""
        call = RuntimeCall(module, self._runtime, self._precision, self.tell)
        whole = called_past(module)
        if whole is not None:
            self._past = (
                f"the script calls {type(whole).__name__}'s forward, past its own call, so its "
                "parts answer one by one: call model(x) in place of model.forward(x)"
            )
        self._calls.append(call)
        self.tell()
        return call

    def tell(self) -> None:
        """Pass on what changed, what did not and why, and what is still to come."""
        points, name = self._points, self._technique
        effects = [call.effect for call in self._calls if call.effect]
        refusals = [call.refusal for call in self._calls if call.refusal]
        most = max(call.seen for call in self._calls)
        # Nobody waits for a model that is hardly ever called.
        waits = [c.waits_for for c in self._calls if c.waits_for and 2 * c.seen >= most]
        told = list(dict.fromkeys([*effects, *refusals]))
        more = [f"{len(told) - _MOST_TOLD} more of its kind"] if len(told) > _MOST_TOLD else []
        words = "; ".join(filter(None, [self._past, *told[:_MOST_TOLD], *more]))
        if effects:
            points.changed(name, words)
        elif refusals:
            points.refuse(name, words)
        points.preparing.pop(name, None)
        if waits:
            points.preparing[name] = waits[0]


class RuntimeCall:
    """What `module(...)` runs from now on."""

    def __init__(
        self,
        module: nn.Module,
        runtime: Runtime,
        precision: Precision,
        tell: Callable[[], None],
    ) -> None:
        self._module = module
        self._modal = differs_in_training(module)
        self._tell_all = tell
        self._runtime = runtime
        self._precision = precision
        self._call = module._call_impl
        self._recorded: list[ModelCall] = []
        self._shapes: list[list[torch.Size]] = []
        self._programs: dict[Key, LoadedProgram | None] = {}
        """By shape; None: calls of that shape stay in eager PyTorch."""
        self._flexible: LoadedProgram | None = None
        """One that takes any batch, or size of image, once a second was seen."""
        self._free: set[Free] = set()
        """In what the shapes that were seen differ."""
        self._conversions = 0
        self._notes: list[str] = []
        self.given_up = False
        self.seen = 0
        """Calls so far."""
        self.effect = ""
        """What answers in the module's place, in words."""
        self.refusal = ""
        """Why nothing does, in words."""
        self.waits_for = "its first inputs were to be recorded" if precision == "int8" else ""
        """What has to come before it answers, in words."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The answer, of the program where there is one for this call."""
        self.seen += 1
        if self.given_up or self._is_in_training():
            return self._call(*args, **kwargs)
        program = self._guarded(self._program_for, ModelCall(args, kwargs))
        if program is not None and program.answers:
            try:
                return program.run(*args, **kwargs)
            except Exception as error:  # the script gets its answer all the same
                self._give_up(note(error))
        before = self._copies(args, kwargs) if program is not None else None
        result = self._call(*args, **kwargs)
        if program is not None and before is not None and not self.given_up:
            self._guarded(self._compare, program, before, result)
        return result

    def _guarded(self, ours: Callable[..., Any], *args: Any) -> Any:
        """What our own part returns; where it fails the module goes on alone."""
        try:
            return ours(*args)
        except RidgelineError as error:
            self._give_up(in_words(error))
        except Exception as error:
            self._give_up(note(error))
        return None

    def _is_in_training(self) -> bool:
        """Would a layer compute something else in this call than a graph does? Then say so."""
        layer = next((layer for layer in self._modal if layer.training), None)
        if layer is not None and not self.refusal:
            self.refusal = (
                f"{type(self._module).__name__} is called in training mode, in which its "
                f"{type(layer).__name__} computes something else in each call; call model.eval()"
            )
            self.waits_for = ""
            self._tell_all()
        return layer is not None

    def _give_up(self, why: str) -> None:
        self.given_up = True
        self.effect, self.waits_for = "", ""
        self.refusal = why
        self._tell_all()
        self._recorded.clear()
        self._programs.clear()

    @staticmethod
    def _copies(args: Any, kwargs: Any) -> ModelCall:
        """A call whose tensors the module may write to without changing ours."""
        from torch.utils._pytree import tree_map_only

        copied = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
        return ModelCall(*copied)

    # -- programs --------------------------------------------------------------------------

    def _program_for(self, call: ModelCall) -> LoadedProgram | None:
        key = (self._module.training, *_key(call))
        if key in self._programs:
            return self._programs[key]
        if len(self._programs) >= _MOST_SHAPES:
            return None
        if self._flexible is not None and self._takes(self._flexible, call, key):
            return self._programs[key]
        if self._precision == "int8" and not self._has_recorded(call):
            return None
        made = self._programs[key] = self._for_shape(call)
        if made is None:
            self._tell()
        # What ranges were taken from proves nothing: int8 is compared from the next call on.
        return None if self._precision == "int8" else made

    def _has_recorded(self, call: ModelCall) -> bool:
        """Record one more call, unless there are enough to convert."""
        if not _is_enough(self._recorded, _CALIBRATION):
            self._recorded.append(self._copies(*call))
            self._shapes.append(_shapes(call))
            self._waits_for(f"{len(self._recorded)} of its inputs were recorded for int8's ranges")
        return _is_enough(self._recorded, _CALIBRATION)

    def _for_shape(self, call: ModelCall) -> LoadedProgram | None:
        """A program free in what shapes differ in, else one of this shape; None: neither is made.

        Raises:
            RidgelineError: The module's first program cannot be made.
        """
        self._shapes.append(_shapes(call))
        self._free |= _differences(self._shapes)
        wanted: list[tuple[Free, ...]] = [tuple(sorted(self._free))] if self._free else []
        for free in (*wanted, ()):
            if self._conversions >= MOST_PROGRAMS:
                return None
            self._conversions += 1
            try:
                made = self._made(call, free)
            except RidgelineError as error:
                if not free and self._conversions <= 1 + bool(wanted):
                    raise
                self._notes.append(in_words(error))
                continue
            self._flexible = made if free else self._flexible
            return made
        return None

    def _takes(self, program: LoadedProgram, call: ModelCall, key: Key) -> bool:
        """Does a program that is free in its shapes answer this one too?"""
        try:
            with torch.no_grad():
                program.run(*call.args, **call.kwargs)
        except RidgelineError:
            return False
        near = program.answers
        agreement = OutputAgreement() if near else program.agreement
        self._programs[key] = LoadedProgram(program.run, agreement, was_near=near)
        return True

    def _made(self, call: ModelCall, free: tuple[Free, ...]) -> LoadedProgram:
        example = self._copies(*call)
        shape = _key(call)
        alike = [one for one in self._recorded if free or _key(one) == shape]
        calibration = alike or self._recorded
        if self._precision == "int8":  # ranges of a large module take minutes
            self._waits_for(f"its int8 program was being made of {len(calibration)} inputs")
        with (
            tempfile.TemporaryDirectory(prefix="ridgeline-runtime-") as folder,
            _generators_kept(),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            self._module_itself(),
        ):
            artifact = convert(
                self._runtime,
                self._module,
                tuple(example.args),
                example.kwargs,
                Path(folder) / "program",
                precision=self._precision,
                calibration=calibration if self._precision == "int8" else (),
                dynamic=free,
            )
            run = self._runtime.load(artifact, threads=torch.get_num_threads())
            run(*example.args, **example.kwargs)  # what it sets up at its first call
        self._notes += artifact.notes
        return LoadedProgram(run)

    @contextmanager
    def _module_itself(self) -> Iterator[None]:
        """While it is converted, calls of the module are its own."""
        ours = self._module._compiled_call_impl
        self._module._compiled_call_impl = None
        try:
            yield
        finally:
            self._module._compiled_call_impl = ours

    # -- comparison ------------------------------------------------------------------------

    def _compare(self, program: LoadedProgram, call: ModelCall, wanted: Any) -> None:
        """Beside the module's answer; once it was near enough, the program answers alone."""
        agreement = program.agreement
        with torch.no_grad():
            agreement.add(wanted, program.run(*call.args, **call.kwargs))
        enough = program.was_near or _enough_compared(agreement)
        if self._precision == "int8" and not enough:
            self._waits_for(f"int8 was compared on {agreement.calls} inputs")
            return
        # A script, or a technique below, that rounds to bfloat16 is no nearer to itself.
        rounded = self._precision == "fp32" and torch.is_autocast_enabled("cpu")
        refusal = agreement.refusal("bf16" if rounded else self._precision)
        if refusal is not None:
            self._give_up(f"{self._runtime.CARD.title} in {self._precision}: {refusal}")
            return
        program.answers = True
        self.refusal, self.waits_for = "", ""
        self._tell()

    def _waits_for(self, words: str) -> None:
        self.waits_for = words
        self._tell_all()

    def _tell(self) -> None:
        answering = [one for one in self._programs.values() if one is not None and one.answers]
        if not answering:
            return
        who, whom = self._runtime.CARD.title, type(self._module).__name__
        words = [f"{whom} answered by {who} in {self._precision} ({answering[0].agreement})"]
        eager = sum(one is None for one in self._programs.values())
        if len(answering) > 1:
            words.append(f"{len(answering)} shapes of inputs")
        if eager:
            words.append(f"{eager} more in eager PyTorch")
        words += self._notes
        self.effect = "; ".join(dict.fromkeys(words))
        self._tell_all()


def _key(call: ModelCall) -> Key:
    """Shapes and dtypes of a call's tensors, and what else it is given."""
    tensors = [(tuple(t.shape), t.dtype) for t in tensors_in((call.args, dict(call.kwargs)))]
    plain = (bool, int, float, str, type(None))
    rest = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, plain)]
    return (len(call.args), *call.kwargs, *tensors, *rest)


def _shapes(call: ModelCall) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_in((call.args, dict(call.kwargs)))]


def _differences(seen: list[list[torch.Size]]) -> set[Free]:
    """Do inputs of the same kind differ in their batch, or images in height and width?"""
    found: set[Free] = set()
    for shapes in seen:
        if [len(shape) for shape in shapes] != [len(shape) for shape in seen[0]]:
            continue
        for here, there in zip(shapes, seen[0], strict=True):
            if len(here) and here[0] != there[0]:
                found.add("batch")
            if len(here) == 4 and here[2:] != there[2:]:
                found.add("size")
    return found


def _is_enough(calls: list[ModelCall], limits: tuple[int, int, int]) -> bool:
    least, most, samples = limits
    seen = sum(_samples(call) for call in calls)
    return len(calls) >= most or (len(calls) >= least and seen >= samples)


def _enough_compared(agreement: OutputAgreement) -> bool:
    least, most, samples = _COMPARISON
    seen = agreement.calls
    return seen >= most or (seen >= least and agreement.samples >= samples)


def _samples(call: ModelCall) -> int:
    first = next(tensors_in((call.args, dict(call.kwargs))), None)
    return len(first) if first is not None and first.dim() else 1


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Put back the state of every random generator that a converter may draw from."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the script's own
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
