"""A mixture's experts as linear layers, so that they are packed and rounded like all others.

transformers keeps the matrices of all experts of a layer in one parameter [experts, out, in] (some
families [experts, in, out]) and lets `ExpertsInterface` say how they are multiplied. Here each
matrix becomes a linear layer of its own, `experts.gate_up_proj.7` say, which whoever packs,
compresses or keeps layers finds as it finds any; and `experts_of_layers` multiplies by them.

Some families' own code multiplies by one after the other instead, `F.linear(x, weight[i])`, and
stays so. A list of linear layers stands in the parameter's place: what the code takes out of it by
a number is a matrix that `F.linear` multiplies by, and the layer of that number does it. Whether
the code does nothing else with the parameter, its source says; code that does (one product over all
experts, slices of a flat matrix) keeps numbers.

T tokens, k experts of each, S = T k.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from inspect import isfunction
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.experts import holds_experts
from ridgeline.checkpoints.skeleton import StoredPiece, owner_of
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.choice import Format, kernel_for
from ridgeline.serve.weights.row_peaks import forget_row_peaks, note_row_peaks, row_peaks

NAME = "ridgeline"
"""Under which transformers knows `experts_of_layers`."""


def are_layers(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether experts are multiplied as layers: on a CPU, where a kernel here is the faster one.

    On a GPU a call for each expert would wait for the device to say which have tokens.
    """
    if device.type != "cpu":
        return False
    arithmetic = torch.float32 if dtype == torch.float16 else dtype
    return config.weights != "model" or (
        kernel_for(Format("dense", arithmetic)).kernel == "ridgeline"
    )


def open_experts(model: nn.Module) -> list[str]:
    """Make every expert's matrices linear layers over the parameters as they are.

    Returns:
        The names of the parameters that were opened.
    """
    opened = []
    for name, module in list(model.named_modules()):
        for leaf in _leaves(module):
            parameter = module._parameters.get(leaf)
            if parameter is None or parameter.ndim != 3:
                continue
            _open(module, leaf, parameter)
            opened.append(f"{name}.{leaf}")
    return opened


def open_place(model: nn.Module, path: str) -> None:
    """Open the parameter that has the expert's layer of that path, where it is such a one."""
    parent, leaf = owner_of(model, path.rpartition(".")[0])
    parameter = parent._parameters.get(leaf) if leaf in _leaves(parent) else None
    if parameter is not None:
        _open(parent, leaf, parameter)


def opened_pieces(
    model: nn.Module, pieces: dict[str, list[StoredPiece]], opened: Collection[str]
) -> dict[str, list[StoredPiece]]:
    """What fills each tensor once these parameters of experts are linear layers."""
    found: dict[str, list[StoredPiece]] = {}
    for target, parts in pieces.items():
        if target not in opened:
            found[target] = parts
            continue
        owner, leaf = owner_of(model, target)
        transposed = _is_transposed(owner)
        names = [f"{target}.{number}.weight" for number in range(len(getattr(owner, leaf)))]
        found |= {name: [] for name in names}
        for piece in parts:
            for number, own in _by_expert(piece, len(names)):
                name = names[number]
                turned = own.transposed != transposed
                found[name].append(replace(own, target=name, transposed=turned))
    return found


def why_numbers(model: nn.Module, config: EngineConfig) -> str | None:
    """Why a model's experts are multiplied as numbers where layers were faster, or asked for.

    None: they are not, or nothing would be gained by layers.
    """
    dtype, device = model.dtype, next(model.parameters()).device
    assert isinstance(dtype, torch.dtype)
    if config.weights == "model" and not are_layers(config, dtype, device):
        return None
    if not any(map(holds_experts, model.modules())):
        return None
    family = model.config.model_type  # type: ignore[union-attr]
    return (
        f"on a {device.type} they are multiplied in one call"
        if device.type != "cpu"
        else f"the code of the family {family} does not multiply them one by one"
    )


@torch.no_grad()
def experts_of_layers(
    experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """[T, width], [T, k] numbers and [T, k] weights of experts to [T, width].

    As transformers' `grouped_mm_experts_forward`, with a call for each expert that has tokens.
    """
    each = top_k_index.shape[-1]
    ordered, order = top_k_index.reshape(-1).sort(stable=True)
    hit, counts = ordered.unique_consecutive(return_counts=True)
    numbers, sizes = hit.tolist(), counts.tolist()
    rows = hidden_states[order // each]
    inner = _product(
        experts, "gate_up_proj" if experts.has_gate else "up_proj", rows, numbers, sizes
    )
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    out = _product(experts, "down_proj", inner, numbers, sizes)
    if experts.has_post_expert_norm:
        out = experts.post_expert_norm(out)
    weighted = out * top_k_weights.reshape(-1)[order, None]
    back = torch.empty_like(weighted)
    back[order] = weighted
    return back.unflatten(0, (-1, each)).sum(1).to(hidden_states.dtype)


def _product(experts: Any, leaf: str, rows: Tensor, numbers: list[int], sizes: list[int]) -> Tensor:
    """[S, in] in the order of their experts to [S, out], `sizes` rows by each of `numbers`."""
    layers = getattr(experts, leaf)
    bias = getattr(experts, f"{leaf}_bias") if experts.has_bias else None
    out = []
    for number, part in zip(numbers, rows.split(sizes), strict=True):
        product = layers[number](part)
        out.append(product if bias is None else product + bias[number])
    return torch.cat(out)


def _leaves(module: nn.Module) -> tuple[str, ...]:
    """The parameters of experts that are multiplied one by one; others: none."""
    if not _asks_interface(module):
        return indexed_leaves(module)
    return ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")


def _asks_interface(module: nn.Module) -> bool:
    """Whether transformers multiplies a module's experts as it is told."""
    return hasattr(module, "_is_expert_parallel")


def _is_transposed(module: Any) -> bool:
    """Whether its matrices lie as [in, out]."""
    return _asks_interface(module) and bool(module.is_transposed)


def _open(module: Any, leaf: str, parameter: nn.Parameter) -> None:
    from transformers.initialization import no_init_weights
    from transformers.integrations.moe import ExpertsInterface

    transposed = _is_transposed(module)
    inputs, outputs = parameter.shape[1:] if transposed else parameter.shape[:0:-1]
    told = _asks_interface(module)
    layers = ExpertLayers() if told else IndexedLayers()
    peaks = row_peaks(module, leaf)
    with no_init_weights():
        for number, one in enumerate(parameter.detach()):
            layer = nn.Linear(inputs, outputs, bias=False, device="meta")
            weight = one.T if transposed else one
            layer.weight = nn.Parameter(weight, requires_grad=False)
            if peaks is not None:
                note_row_peaks(layer, "weight", peaks[number])
            layers.append(layer)
    del module._parameters[leaf]
    forget_row_peaks(module, leaf)
    setattr(module, leaf, layers)
    if told:
        ExpertsInterface.register(NAME, experts_of_layers)
        module.config._experts_implementation = NAME


def _by_expert(piece: StoredPiece, count: int) -> Iterator[tuple[int, StoredPiece]]:
    """What a stored tensor fills of each expert's own matrix."""
    if piece.expert is not None:
        yield piece.expert, replace(piece, expert=None)
        return
    first, last = piece.rows or (0, count)
    for number in range(first, last):
        yield number, replace(piece, rows=None, inside=number - first)


class ExpertLayers(nn.ModuleList):
    """A linear layer for each expert, in the place of their parameter."""


class IndexedLayers(ExpertLayers):
    """The same for code that takes a matrix by its number and multiplies by it."""

    def __getitem__(self, number: Any) -> Any:
        """The matrix of that number, a whole one or a tensor of one."""
        return IndexedMatrix(super().__getitem__(int(number)))


class IndexedMatrix:
    """What `torch.nn.functional.linear` takes for a weight [out, in]: a layer that multiplies."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        """The product, of the one function that is asked for."""
        if function is not functional.linear or kwargs or len(args) != 2:
            return NotImplemented
        x, matrix = args
        found: Tensor = matrix.layer(x)
        return found


def indexed_leaves(module: nn.Module) -> tuple[str, ...]:
    """The parameters [experts, out, in] by which a module's code multiplies one by one."""
    stacked = tuple(
        name for name, one in module._parameters.items() if one is not None and one.ndim == 3
    )
    if not stacked or "expert" not in type(module).__name__.lower():
        return ()
    return stacked if set(stacked) <= _multiplied(type(module)) else ()


def _multiplied(kind: type[nn.Module]) -> frozenset[str]:
    """The attributes of `self` that a class takes matrices out of, and uses for nothing else."""
    codes = [
        one.__code__ for name, one in vars(kind).items() if name != "__init__" and isfunction(one)
    ]
    methods = [tree for code in codes for tree in _read(code)]
    uses = [name for one in methods for name in _uses(one)]
    products = [name for one in methods for name in _products(one)]
    return frozenset(name for name in products if uses.count(name) == products.count(name))


@functools.cache
def _read(code: CodeType) -> list[ast.stmt]:
    """A method as it is written; nothing, where it was made without a file."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError):
        return []


def _uses(method: ast.stmt) -> Iterator[str]:
    """Every attribute of `self`, as often as it is read for more than whether it is there."""
    asked = {
        id(node.left)
        for node in ast.walk(method)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
    }
    for node in ast.walk(method):
        if id(node) not in asked and (name := _own(node)) is not None:
            yield name


def _products(method: ast.stmt) -> Iterator[str]:
    """The x of every `linear(…, self.x[…])`."""
    for node in ast.walk(method):
        if not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        weight = node.args[1]
        if called == "linear" and isinstance(weight, ast.Subscript):
            name = _own(weight.value)
            if name is not None and not isinstance(weight.slice, ast.Slice | ast.Tuple):
                yield name


def _own(node: ast.AST) -> str | None:
    """The attribute's name, where a node is an attribute of `self`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None
