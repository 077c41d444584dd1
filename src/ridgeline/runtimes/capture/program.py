"""A module as an exported program: what must stay free is free, or one line says what fixes it.

The program takes a flat list of tensors and returns one; `structure.py` has what lies around them.
An example batch of 1 is widened to 2 first: torch takes a size of 1 for a constant (PyTorch
documentation, torch.export, "0/1 specialization").

`torch.export` runs in non-strict mode: forward runs in Python, so that an error ends in the user's
frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.errors import ExportError, InputError
from ridgeline.runtimes import Free, ModelCall, Precision
from ridgeline.runtimes.capture.blame import blame, failed_in_pytorch, keep_log
from ridgeline.runtimes.capture.constants import ConstantReads
from ridgeline.runtimes.capture.fixed_sizes import refuse_fixed_sizes
from ridgeline.runtimes.capture.quiet import silence
from ridgeline.runtimes.capture.sources import (
    Place,
    place_of_error,
    place_of_node,
)
from ridgeline.runtimes.capture.states import (
    StateSnapshot,
    answers_from_its_input_alone,
    forget_cached_shapes,
)
from ridgeline.runtimes.capture.structure import (
    Structure,
    UnknownStructure,
    flatten,
    in_words,
    unflatten,
)
from ridgeline.runtimes.capture.whole_lists import write_lists_out

_DIFFERS_IN_TRAINING = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.Dropout, nn.Dropout1d,
    nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
"""Where no line is the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A module's graph, and the structure around the tensors that go in and come out."""

    program: Any
    """`torch.export.ExportedProgram` of a list of tensors to a tuple of tensors."""
    tensors: list[Tensor]
    """The example that was traced: the batch is at least 2 where it is free."""
    inputs: Structure
    outputs: Structure
    free: list[Free]
    precision: Precision
    """What the runtime is to compute in; where its card says so, casts are in the program."""
    has_attention: bool


class _Flat(nn.Module):  # type: ignore[misc]
    """The module as a function of tensors alone."""

    def __init__(self, module: nn.Module, inputs: Structure, *, autocast: bool) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs
        self.autocast = autocast
        self.outputs: Structure = {}
        self.reads = ConstantReads()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors of what the module returns."""
        args, kwargs = unflatten(self.inputs, list(tensors))
        # A context that is not needed would become a graph of its own.
        cast = torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()
        with cast, self.reads.kept(self.module):
            # Past a call that was put in the place of the module's own.
            result = self.module._call_impl(*args, **kwargs)
        found, self.outputs = flatten(result)
        if self.autocast:
            found = [one.float() if one.dtype is torch.bfloat16 else one for one in found]
        return tuple(found)


def capture(
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: tuple[Free, ...],
    folder: Path,
    precision: Precision = "fp32",
    autocast: bool = False,
) -> Captured:
    """Export a module, and check that the graph does what a call does.

    Args:
        module: In evaluation mode.
        inputs: Positional arguments of an example.
        kwargs: Its keyword arguments.
        dynamic: Dimensions that must stay free.
        folder: Beside it, torch's own message is kept where it fails.
        precision: What the runtime is to compute in; kept in what is returned.
        autocast: Matmuls and convolutions in bfloat16; what comes out is float32.

    Raises:
        ExportError: In one line, whose line or operator it is, and the cure.
    """
    _refuse_training(module)
    tensors, structure = _flat_inputs(inputs, kwargs)
    batch = next((tensor.shape[0] for tensor in tensors if tensor.dim()), 1)
    example = tensors
    if "batch" in dynamic:
        example = [_widened(tensor, batch) for tensor in tensors]
        batch = max(batch, 2)
    flat = _Flat(module, structure, autocast=autocast)
    flat.training = False
    outputs = _run_once(flat, example, tensors)
    shapes = tuple(_free_dimensions(tensor, batch, dynamic) for tensor in example)
    program = _exported(flat, example, shapes, folder)
    if flat.outputs != outputs:
        raise _depends_on_size(flat.outputs, outputs, module)
    refuse_fixed_sizes(program, shapes, example)
    _refuse_writes(program, module)
    return Captured(
        program=program,
        tensors=example,
        inputs=structure,
        outputs=outputs,
        free=list(dynamic),
        precision=precision,
        has_attention=_has_attention(program),
    )


def flat_calls(captured: Captured, calls: Sequence[ModelCall]) -> list[list[Tensor]]:
    """The tensors of each calibration call.

    Raises:
        ExportError: A call whose arguments have another structure than the example's.
        InputError: There are none.
    """
    if not calls:
        raise InputError("int8 takes its ranges from calls with real inputs; none was given")
    found = []
    for call in calls:
        tensors, structure = _flat_inputs(call.args, call.kwargs)
        if structure != captured.inputs:
            raise ExportError(
                f"one call has arguments {in_words(structure)}, the example "
                f"{in_words(captured.inputs)}: a graph keeps the number of tensors of its example; "
                "stack lists into one padded tensor",
                kind="varying-structure",
            )
        found.append(tensors)
    return found


def differs_in_training(module: nn.Module) -> dict[nn.Module, str]:
    """The layers that compute something else in training mode, and their names."""
    named = module.named_modules()
    return {m: name for name, m in named if isinstance(m, _DIFFERS_IN_TRAINING)}


def _refuse_training(module: nn.Module) -> None:
    layers = differs_in_training(module)
    layer = next((layer for layer in layers if layer.training), None)
    if layer is not None:
        name = layers[layer]
        raise ExportError(
            f"{type(layer).__name__} `{name or 'self'}` is in training mode, where it computes "
            "something else in each call; call model.eval() before exporting",
            kind="training-mode",
        )


def _flat_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Tensor], Structure]:
    try:
        tensors, structure = flatten((tuple(args), dict(kwargs)))
    except UnknownStructure as error:
        raise ExportError(
            f"an argument of forward is a {error}, which no graph takes: pass tensors, or lists, "
            "tuples and dicts of them",
            kind="unknown-input",
        ) from None
    if not tensors:
        raise ExportError(
            "forward was called without a tensor: there is nothing to compute from; pass the "
            "inputs as tensors",
            kind="unknown-input",
        )
    # A compiled program reads memory as it lay in the example: one way, for whoever calls it later.
    return [tensor.detach().contiguous() for tensor in tensors], structure


def _widened(tensor: Tensor, batch: int) -> Tensor:
    if batch == 1 and tensor.dim() and tensor.shape[0] == 1:
        return tensor.repeat(2, *[1] * (tensor.dim() - 1))
    return tensor


def _run_once(flat: _Flat, example: list[Tensor], tensors: list[Tensor]) -> Structure:
    """What eager PyTorch returns for the example; the script's caches are filled with real data.

    What a first call leaves behind and a second does not is such a cache; what each call leaves
    behind, no graph does, unless it is there for that call alone.
    """
    before = StateSnapshot(flat.module)
    try:
        _call(flat, example)
        warm = StateSnapshot(flat.module)
        if before.changed():
            _call(flat, example)
    except UnknownStructure as error:
        raise _unknown_output(flat.module, error) from None
    except Exception as error:  # whatever the user's own forward raises
        widened = any(a is not b for a, b in zip(example, tensors, strict=True))
        if widened and _runs(flat, tensors):
            raise _one_batch_only(error) from error
        raise failed_in_pytorch(error) from error
    changed = warm.changed()
    if changed:
        for_itself = not warm.changed(rewritten=False) and answers_from_its_input_alone(
            partial(_call, flat), example, before
        )
        if not for_itself:
            before.take_back()
            raise _keeps_state(flat.module, changed)
    return flat.outputs


def _call(flat: _Flat, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """One eager call, on copies: forward may write to what it is given."""
    with torch.no_grad(), silence():
        found: tuple[Tensor, ...] = flat(*[tensor.clone() for tensor in tensors])
    return found


def _keeps_state(module: nn.Module, changed: list[str]) -> ExportError:
    return ExportError(
        f"{_forward_of(module)} changes {', '.join(changed[:3])} in each call, which a "
        "graph does not do; keep it out of forward, or pass it in and return it",
        kind="changes-state",
    )


def _runs(flat: _Flat, tensors: list[Tensor]) -> bool:
    try:
        _call(flat, tensors)
    except Exception:  # whatever the user's own forward raises: then it is not the batch's fault
        return False
    return True


def _one_batch_only(error: BaseException) -> ExportError:
    place = place_of_error(error)
    return ExportError(
        f"{place or 'forward'} takes a batch of 1 and no other; write the size as x.shape[0] or "
        "-1, or export with the batch fixed",
        kind="fixed-size",
    )


def _unknown_output(module: nn.Module, error: UnknownStructure) -> ExportError:
    where = f" at {error.path}" if error.path else ""
    return ExportError(
        f"{_forward_of(module)} returns a {error}{where}, which no graph returns; return tensors, "
        "or a tuple, dict or dataclass of them",
        kind="unknown-output",
    )


def _depends_on_size(traced: Structure, seen: Structure, module: nn.Module) -> ExportError:
    return ExportError(
        f"{_forward_of(module)} returns {in_words(traced)} where a call returns {in_words(seen)}: "
        "a number that follows from the size of the input; return it as a tensor, or leave it out",
        kind="varying-output",
    )


def _forward_of(module: nn.Module) -> str:
    code = getattr(type(module).forward, "__code__", None)
    if code is None:
        return "forward"
    return f"{Place(code.co_filename, code.co_firstlineno)} of {type(module).__name__}"


def _free_dimensions(tensor: Tensor, batch: int, dynamic: tuple[Free, ...]) -> dict[int, Any]:
    """Dimensions of an input that shall be free: its first, and height and width of images."""
    auto = torch.export.Dim.AUTO
    free = {0: auto} if "batch" in dynamic and tensor.dim() and tensor.shape[0] == batch else {}
    if "size" in dynamic and tensor.dim() == 4:
        free |= {2: auto, 3: auto}
    return free


def _exported(
    flat: _Flat, example: list[Tensor], shapes: tuple[dict[int, Any], ...], folder: Path
) -> Any:
    before = StateSnapshot(flat.module)
    try:
        with torch.no_grad(), silence() as said:
            program = torch.export.export(
                flat, tuple(example), dynamic_shapes={"tensors": shapes}, strict=False
            )
    except Exception as error:  # whatever forward and the tracer raise
        if isinstance(error, UnknownStructure):
            raise _changing_output(flat.module, error) from error
        raise blame(error, keep_log(folder, error, said.getvalue())) from error
    finally:
        changed = before.take_back(rewritten=False)
        emptied = forget_cached_shapes()
    if changed:
        raise _keeps_state(flat.module, changed)
    if emptied:
        raise ExportError(
            f"{emptied[0]} keeps tensors from one call to the next; compute them in __init__ as a "
            "buffer, or without the cache",
            kind="caches-tensors",
        )
    write_lists_out(program)
    return program


def _changing_output(module: nn.Module, error: UnknownStructure) -> ExportError:
    if isinstance(error.value, torch.SymInt | torch.SymFloat | torch.SymBool):
        where = f" at {error.path}" if error.path else ""
        return ExportError(
            f"{_forward_of(module)} returns a number{where} that follows from the size of the "
            "input; return it as a tensor, or leave it out",
            kind="varying-output",
        )
    return _unknown_output(module, error)


def _refuse_writes(program: Any, module: nn.Module) -> None:
    """Refuse a graph that changes a buffer or what it was given: a runtime keeps that to itself."""
    writing = [node for node in operators(program) if node.target._schema.is_mutable]
    if not writing:
        return
    buffers, inputs = _written(program)
    if buffers or inputs:
        place = next(filter(None, map(place_of_node, writing)), None)
        what = f"the buffer `{buffers[0].removeprefix('module.')}`" if buffers else "its input"
        cure = "pass it in and return it" if buffers else "work on a copy: x = x.clone()"
        raise ExportError(
            f"{place or _forward_of(module)} changes {what} in place, which a graph does not do; "
            f"{cure}",
            kind="writes-in-place",
        )


def _written(program: Any) -> tuple[list[str], list[str]]:
    """Buffers and inputs that the graph changes."""
    try:
        with silence():
            signature = program.run_decompositions({}).graph_signature
    except Exception:  # torch's own passes: then the runtime's conversion fails, and says of what
        return [], []
    return (
        list(signature.buffers_to_mutate.values()),
        list(signature.user_inputs_to_mutate.values()),
    )


def operators(program: Any) -> Iterator[Any]:
    """All calls of operators, in the graphs of contexts (autocast) too."""
    for part in program.graph_module.modules():
        for node in part.graph.nodes if hasattr(part, "graph") else ():
            if hasattr(node.target, "_schema"):
                yield node


def _has_attention(program: Any) -> bool:
    names = {str(node.target) for node in operators(program)}
    fused = any("scaled_dot_product" in name for name in names)
    return fused or {"aten.softmax.int", "aten.matmul.default"} <= names
