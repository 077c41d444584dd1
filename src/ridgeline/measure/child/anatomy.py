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


_CONSTANT_KINDS = ("prim::Constant", "prim::ConstantMKLDNNTensor")
"""The kinds of constants in TorchScript's graphs; the second once they are optimised."""
_PACKED_NAMES = ("_packed_params", "param")
"""The attributes of quantised layers that hold what they pack."""


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


def channels_last_of(tensor: torch.Tensor) -> torch.memory_format | None:
    """The format in which the channels of these images or volumes come last; None: neither."""
    import torch

    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())


def weights(module: nn.Module) -> list[torch.Tensor]:
    """Its parameters; of a module that has none, the tensors that it multiplies by all the same.

    Freezing makes parameters constants of the program (`torch.jit.freeze`), and quantisation packs
    them (`torch.ao.nn.quantized`): neither is a parameter or a buffer any more.
    """
    found = parameters(module)
    if found:
        return found
    return [tensor for part in parts(module) for held in _baked(part) for tensor in _tensors(held)]


def _baked(part: nn.Module) -> list[Any]:
    """What is neither parameter nor buffer of a part: constants of its program, packed weights."""
    if not isinstance(part, sys.modules["torch"].jit.ScriptModule):
        own = object.__getattribute__(part, "__dict__")
        return _packed([own.get(name) for name in _PACKED_NAMES])
    packed = _packed([getattr(part, name, None) for name in _PACKED_NAMES])
    try:
        graph = part.graph  # a node does not outlive the graph that it is of
    except RuntimeError:
        return packed  # a part that only holds others has no program
    nodes = [node for kind in _CONSTANT_KINDS for node in graph.findAllNodes(kind)]
    held = [_constant(node) for node in nodes if node.hasAttribute("value")]
    return packed + held


def _packed(held: list[Any]) -> list[Any]:
    """What is packed among attributes that may be anything of the user's."""
    return [one for one in held if type(one) is sys.modules["torch"].ScriptObject]


def _constant(node: Any) -> Any:
    """A program's constant, where it is a tensor of numbers or packed; None for any other."""
    kind = node.kindOf("value")
    if kind == "ival":
        return node.ival("value")
    tensor = node.t("value") if kind == "t" else None
    return tensor if tensor is not None and tensor.is_floating_point() and tensor.dim() else None


def _tensors(held: Any) -> list[torch.Tensor]:
    """Weight and bias of a packed layer, or of a packed layer's cells; a tensor itself."""
    torch = sys.modules["torch"]
    if isinstance(held, torch.Tensor):
        return [held]
    if type(held) is not torch.ScriptObject:
        return []
    inside = held.unpack() if hasattr(held, "unpack") else held.__getstate__()
    return [tensor for one in torch.utils._pytree.tree_leaves(inside) for tensor in _tensors(one)]


def buffers(module: nn.Module) -> list[torch.Tensor]:
    """Its buffers, each once."""
    return [buffer for _, buffer in _named_tensors(module, "_buffers")]


def is_in_training(module: nn.Module) -> bool:
    """Is it in training mode? A frozen program has no mode: it is made for evaluation."""
    return bool(getattr(module, "training", False))


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
