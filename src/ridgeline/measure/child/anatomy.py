"""What a module consists of, read past everything that its class may have redefined.

`parameters()`, `modules()`, iteration, `len` and attribute access are the user's to override, and
may raise or lie; containers may hold None. The dictionaries below them belong to torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def parts(module: nn.Module) -> list[nn.Module]:
    """The module and all that it contains, each once, outermost first."""
    found: dict[int, nn.Module] = {}
    pending = [module]
    while pending:
        part = pending.pop()
        if id(part) not in found:
            found[id(part)] = part
            pending += reversed(children(part))
    return list(found.values())


def children(module: nn.Module) -> list[nn.Module]:
    """What it contains directly; entries that are None are left out."""
    return [child for _, child in _held(module, "_modules") if child is not None]


def parameters(module: nn.Module) -> list[torch.Tensor]:
    """Its parameters, each once; what a lazy module has yet to make is left out."""
    return [parameter for _, parameter in named_parameters(module)]


def named_parameters(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters with the names that `named_parameters()` of an ordinary module gives them."""
    return _named_tensors(module, "_parameters")


def buffers(module: nn.Module) -> list[torch.Tensor]:
    """Its buffers, each once."""
    return [buffer for _, buffer in _named_tensors(module, "_buffers")]


def is_unfinished(module: nn.Module) -> bool:
    """Does a lazy part wait for its first input?"""
    return any(
        tensor is not None and _is_lazy(tensor)
        for part in parts(module)
        for _, tensor in _held(part, "_parameters")
    )


def _named_tensors(module: nn.Module, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    entered: set[int] = set()
    pending: list[tuple[str, nn.Module]] = [("", module)]
    while pending:
        prefix, part = pending.pop()
        if id(part) in entered:
            continue
        entered.add(id(part))
        for name, tensor in _held(part, kind):
            if tensor is not None and not _is_lazy(tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor
        inner = [(name, one) for name, one in _held(part, "_modules") if one is not None]
        pending += [(f"{prefix}{name}.", one) for name, one in reversed(inner)]


def _held(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """One of torch's dictionaries of a module; a scripted one shows it as an attribute only."""
    own = object.__getattribute__(module, "__dict__").get(kind)
    return list((own if own is not None else getattr(module, kind, {})).items())


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Techniques are judged where torch is not imported, and so is this module."""
    return bool(sys.modules["torch.nn.parameter"].is_lazy(tensor))
