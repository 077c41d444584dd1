"""Experts that a file stores together in one tensor, taken one by one.

gpt-oss, GraniteMoe, Llama 4 and others store [experts, …] in one tensor, where Mixtral and Qwen
have one for each. Compressed, each expert's matrix is a layer [out, in] of its own, by a name that
says which of the parameter it is: `model.layers.0.mlp.experts.gate_up_proj.7`. No other program
reads these names; for families that store their experts one by one nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from ridgeline.checkpoints.skeleton import StoredPiece

_OWN = re.compile(r"(.+)\.(\d+)\.weight")


def own_name(target: str, expert: int) -> str:
    """The name under which one expert's part of a parameter is saved.

    >>> own_name("model.layers.0.mlp.experts.down_proj", 7)
    'model.layers.0.mlp.experts.down_proj.7.weight'
    """
    return f"{target.removesuffix('.weight')}.{expert}.weight"


def owner_of_own_name(source: str, wanted: Mapping[str, Any]) -> tuple[str, int] | None:
    """The parameter, among `wanted`, and the expert that such a name means; None: it is no such."""
    found = _OWN.fullmatch(source)
    if found is None:
        return None
    for target in (found[1], f"{found[1]}.weight"):
        if target in wanted and wanted[target].ndim == 3:
            return target, int(found[2])
    return None


def holds_experts(module: nn.Module) -> bool:
    """Whether a module keeps the matrices of several experts in one parameter."""
    named = type(module).__name__.lower()
    return "expert" in named and any(
        one is not None and one.ndim == 3 for one in module._parameters.values()
    )


def are_turned(module: Any) -> bool:
    """Whether a module keeps its experts' matrices as [experts, in, out].

    transformers says it of those that it multiplies as it is told. Of others (Llama 4) shapes tell:
    the first matrix takes in as much as the second gives.
    """
    said = getattr(module, "is_transposed", None)
    if said is not None:
        return bool(said)
    first, second = (module._parameters.get(name) for name in ("gate_up_proj", "down_proj"))
    return first is not None and second is not None and first.shape[1] == second.shape[2]


def one_by_one(owner: nn.Module, pieces: list[StoredPiece], num_experts: int) -> list[StoredPiece]:
    """What fills a parameter of experts, with a piece for each where the file has one tensor."""
    if not holds_experts(owner) or len(pieces) != 1 or pieces[0].expert is not None:
        return pieces
    if pieces[0].rows is not None or pieces[0].transposed:
        return pieces
    return [
        replace(pieces[0], expert=number, inside=number, turned=are_turned(owner))
        for number in range(num_experts)
    ]
