"""The forward of a module answered by another program: compiled, exported, in fewer bits.

The program is made at the module's first calls, from the inputs that come then (for int8, from the
ranges of several of them), so that it fits what the pipeline really sends.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.realtime.rewriting.layers import Inner, bare
from ridgeline.runtimes import ModelCall, Precision, runtime
from ridgeline.runtimes.capture.converting import convert
from ridgeline.runtimes.capture.structure import flatten

if TYPE_CHECKING:
    from torch import nn

Backend = Literal["compile", "onnx", "openvino", "aoti"]
CALIBRATION_CALLS = 8
MOST_PROGRAMS = 4
"""Programs of one module, for inputs of other shapes; what comes after runs as it was written."""


class ProgramLayer:
    """A layer that calls a program in the place of the module.

    Args:
        module: Whose forward it is.
        make: Makes the program from the module and the calls that were seen.
        calls: How many calls it needs to see.
    """

    def __init__(
        self, module: nn.Module, make: Callable[[nn.Module, list[ModelCall]], Inner], calls: int = 1
    ) -> None:
        self._module, self._make, self._needed = module, make, calls
        self._programs: dict[Any, Inner] = {}
        self._seen: dict[Any, list[ModelCall]] = {}

    def __call__(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """The program's answer; the module's own until there are calls enough to make it from."""
        tensors, _ = flatten((args, kwargs))
        key = tuple((tuple(one.shape), one.dtype) for one in tensors)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= MOST_PROGRAMS:
                return inner(*args, **kwargs)
            seen = self._seen.setdefault(key, [])
            seen.append(ModelCall(args, kwargs))
            if len(seen) < self._needed:
                return inner(*args, **kwargs)
            with bare(self._module) as module:
                program = self._make(module, self._seen.pop(key))
            self._programs[key] = program
        return program(*args, **kwargs)


def compiled(module: nn.Module, calls: list[ModelCall]) -> Inner:  # noqa: ARG001 - one shape
    """The module's own forward through `torch.compile`, for however many threads it is called in.

    It is compiled in a replay with all threads, and may run in a stage that has a part of them.
    """
    import torch

    options = {"cpp.dynamic_threads": True}
    program: Inner = torch.compile(module.forward, dynamic=False, options=options)
    return program


def exporter(
    name: str, precision: Precision, threads: int
) -> Callable[[nn.Module, list[ModelCall]], Inner]:
    """Makes programs of a runtime; their files live as long as the program does."""

    def make(module: nn.Module, calls: list[ModelCall]) -> Inner:
        made = runtime(name)
        folder = tempfile.TemporaryDirectory(prefix="ridgeline-program-")
        artifact = convert(
            made,
            module.eval(),
            calls[0].args,
            calls[0].kwargs,
            Path(folder.name) / "program",
            precision=precision,
            calibration=calls if precision == "int8" else (),
            dynamic=(),
        )
        program = made.load(artifact, threads=threads)
        weakref.finalize(program, folder.cleanup)
        return program

    return make


def in_bfloat16(module: nn.Module, calls: list[ModelCall]) -> Inner:  # noqa: ARG001 - any shape
    """Convert a module's weights in place; the call takes and gives the dtypes that it did."""
    import torch

    from ridgeline.runtimes.capture.structure import unflatten

    module.to(torch.bfloat16)
    forward = module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs, structure = flatten((args, kwargs))
        halved = [one.bfloat16() if one.dtype == torch.float32 else one for one in inputs]
        args, kwargs = unflatten(structure, halved)
        answer, told = flatten(forward(*args, **kwargs))
        return unflatten(
            told, [one.float() if one.dtype == torch.bfloat16 else one for one in answer]
        )

    return call
