"""Which `nn.Module`s the code of a stage reaches, by path.

A stage may be a module, an object with modules in its attributes, or a function that names them: by
a closure, a default, a global of its file. A module is named `stage:path`, the path as attributes
and keys are written (`detect:encoder.blocks.0`); a stage that is a module is `detect:`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError
from ridgeline.realtime.rewriting.graph import called_code

if TYPE_CHECKING:
    from torch import nn

    from ridgeline.realtime.pipeline import Pipeline

_DEEPEST = 6


def outermost_modules(call: Any) -> dict[str, nn.Module]:
    """The modules that the code of a stage reaches, without those inside of another; by path."""
    from torch import nn

    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def look(value: Any, path: str, depth: int) -> None:
        if id(value) in seen or depth > _DEEPEST or isinstance(value, types.ModuleType):
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found[path] = value
            return
        for name, part in _parts(value):
            look(part, f"{path}.{name}" if path else name, depth + 1)

    look(called_code(call), "", 0)
    return found


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds that may lead to a module, with a name for each."""
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), part) for index, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _names_of(value)
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        yield from vars(value).items()


def _names_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names: by its closure, its defaults, the globals that its code loads."""
    variables = inspect.getclosurevars(function)
    yield from variables.nonlocals.items()
    yield from _defaults(function)
    home = function.__module__
    for name, value in variables.globals.items():
        if not isinstance(value, types.FunctionType) or value.__module__ == home:
            yield name, value


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The default values of a function's parameters, by name."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            yield name, parameter.default


def modules_of(pipeline: Pipeline, *, depth: int = 2) -> dict[str, nn.Module]:
    """Every module of a pipeline down to this depth below the outermost, by `stage:path`.

    A module that several stages reach has the name of the first.
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, code in pipeline.code.items():
        for path, outer in outermost_modules(code.call).items():
            for inner, module in outer.named_modules():
                if id(module) in seen or (inner and inner.count(".") >= depth):
                    continue
                seen.add(id(module))
                found[f"{name}:{'.'.join(part for part in (path, inner) if part)}"] = module
    return found


def find_modules(pipeline: Pipeline, names: str) -> dict[str, nn.Module]:
    """The modules that an option names, e.g. `detect:encoder, segment:encoder`.

    Raises:
        InputError: The pipeline has none of that name.
    """
    known = modules_of(pipeline, depth=_DEEPEST)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise InputError(f"no module {name!r} in the pipeline; known: {', '.join(known)}")
    return {name: known[name] for name in wanted}


def weight_digest(module: nn.Module) -> str:
    """Equal for modules of equal structure with bit-equal weights and buffers."""
    digest = hashlib.blake2b(repr(module).encode(), digest_size=16)
    for name, tensor in module.state_dict(keep_vars=False).items():
        flat = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(flat.shape)} {flat.dtype}".encode())
        import torch

        digest.update(flat.flatten().view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()
