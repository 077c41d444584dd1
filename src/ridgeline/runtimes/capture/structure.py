"""Inputs and outputs of a module as a flat list of tensors, and the structure around them.

The structure is plain JSON, so that another process can put together what the module returns:

    {"tensor": 0}                                        the first of the list
    {"list": […]}  {"tuple": […]}  {"dict": [[key, …]]}  as they nest
    {"object": "module:Class", "fields": [[name, …]]}    a dataclass, a ModelOutput, a named tuple
    {"constant": 3}                                      what is no tensor
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pkgutil
from collections.abc import Mapping
from typing import Any

import torch

from ridgeline.runtimes.capture.torchvision_schemas import lacks_operators, let_torchvision_import

Structure = dict[str, Any]
_PLAIN = (str, int, float, bool, type(None))


class UnknownStructure(Exception):
    """A value that is neither a tensor nor made of lists, mappings, dataclasses and constants."""

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(type(value).__qualname__)
        self.value = value
        self.path = path
        """Where it stands, e.g. `['images']`."""


def flatten(value: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors in a value, in order, and the structure around them.

    >>> flatten({("disp", 0): torch.ones(1)})[1]
    {'dict': [[['disp', 0], {'tensor': 0}]]}

    Raises:
        UnknownStructure: Something in it is no tensor and cannot be written down.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _flatten(value, tensors, "")


def _flatten(value: Any, tensors: list[torch.Tensor], path: str) -> Structure:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if type(value) in _PLAIN:
        return {"constant": value}
    if type(value) in (list, tuple):
        parts = [_flatten(one, tensors, f"{path}[{i}]") for i, one in enumerate(value)]
        return {type(value).__name__: parts}
    fields = _fields(value)
    if fields is None:
        raise UnknownStructure(value, path)
    named = [
        [_written(key), _flatten(one, tensors, f"{path}[{key!r}]")] for key, one in fields.items()
    ]
    if type(value) is dict:
        return {"dict": named}
    return {"object": f"{type(value).__module__}:{type(value).__qualname__}", "fields": named}


def _written(key: Any) -> Any:
    """A key as JSON has it: a tuple is a list there."""
    return list(key) if isinstance(key, tuple) else key


def _may_be_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(isinstance(one, str | int) for one in parts)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """What a mapping, a named tuple or a dataclass holds, by name; None: it is none of them."""
    if isinstance(value, Mapping):
        return value if all(map(_may_be_key, value)) else None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value._asdict()  # type: ignore[attr-defined,no-any-return]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def unflatten(structure: Structure, tensors: list[torch.Tensor]) -> Any:
    """The value of this structure around these tensors.

    >>> list(unflatten({"dict": [[["disp", 0], {"constant": 2}]]}, []))
    [('disp', 0)]

    An object of a class that cannot be found here (it is the script's own, and this is another
    process) comes back as a dict of its fields.
    """
    ((kind, content), *rest) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "constant":
        return content
    if kind == "list":
        return [unflatten(part, tensors) for part in content]
    if kind == "tuple":
        return tuple(unflatten(part, tensors) for part in content)
    fields = content if kind == "dict" else rest[0][1]
    values: dict[Any, Any] = {
        tuple(key) if isinstance(key, list) else key: unflatten(part, tensors)
        for key, part in fields
    }
    if kind == "dict":
        return values
    made = _class_of(content)
    return values if made is None else made(**values)


def find_classes(structure: Structure) -> None:
    """Import the classes of a structure's objects, which takes seconds of some libraries."""
    ((kind, content), *rest) = structure.items()
    if kind in ("list", "tuple"):
        for part in content:
            find_classes(part)
    elif kind in ("dict", "object"):
        for _, part in content if kind == "dict" else rest[0][1]:
            find_classes(part)
        if kind == "object":
            _class_of(content)


@functools.cache
def _class_of(name: str) -> Any:
    with contextlib.suppress(Exception):  # whatever a module raises as it is imported
        try:
            return pkgutil.resolve_name(name)
        except RuntimeError as error:  # transformers' module imports a torchvision that cannot be
            if not lacks_operators(error):
                raise
        let_torchvision_import()
        return pkgutil.resolve_name(name)
    return None


def in_words(structure: Structure) -> str:
    """A structure for a message.

    >>> in_words({"tuple": [{"tensor": 0}, {"list": [{"tensor": 1}, {"constant": 2}]}]})
    '(tensor, [tensor, 2])'
    """
    ((kind, content), *rest) = structure.items()
    if kind == "tensor":
        return "tensor"
    if kind == "constant":
        return repr(content)
    if kind in ("list", "tuple"):
        inside = ", ".join(in_words(part) for part in content)
        return f"[{inside}]" if kind == "list" else f"({inside})"
    fields = content if kind == "dict" else rest[0][1]
    inside = ", ".join(f"{key}: {in_words(part)}" for key, part in fields)
    return f"{{{inside}}}"
