"""A mixture's experts as linear layers, so that they are packed and rounded like all others.

transformers keeps the matrices of all experts of a layer in one parameter [experts, out, in] (some
families [experts, in, out]) and lets `ExpertsInterface` say how they are multiplied. Here each
matrix becomes a linear layer of its own, `experts.gate_up_proj.7` say, which whoever packs,
compresses or keeps layers finds as it finds any; and `experts_of_layers` multiplies by them.
Modules that do not ask that interface but take one matrix after the other keep their own code
(`indexed_experts.py`); all others keep their parameters.

T tokens, k experts of each, S = T k.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.experts import holds_experts
from ridgeline.checkpoints.skeleton import StoredPiece, owner_of
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.choice import Format, kernel_for
from ridgeline.serve.weights.indexed_experts import ExpertLayers, IndexedLayers, indexed_leaves
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
