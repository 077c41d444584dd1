"""Which tensor of a model is cut along which dimension, so that ranks meet twice a layer.

Projections into heads and into the inner width of an MLP are cut along their outputs, those back
along their inputs (Shoeybi et al. 2019, Megatron-LM, section 3): between the two a rank needs
nothing of the others, so its keys and values are those of its own heads. Which module is which,
transformers says of each of its families (`tp_plan`); what that plan says is carried out here, or
refused by name. Embedding and head are cut along the words.

A mixture's experts are cut like any MLP, or, if that is asked for, dealt out whole: a rank computes
those of its own for all tokens that were sent to them, and sums are as many as before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from ridgeline.errors import InputError

_EXPERTS = "moe_tp_experts"
_LAYERS = {
    "colwise": "a share of the outputs",
    "rowwise": "a share of the inputs, outputs added up",
    "rowwise_split_input": "the same, given all inputs",
    "colwise_gather_output": "a share of the outputs, put together",
    "packed_colwise": "a share of each of two matrices in one",
    _EXPERTS: "outputs added up",
    "replicated_with_grad_allreduce": "whole on every rank",
    "embedding_rowwise": "a share of the words",
}
"""What is carried out, under transformers' names."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which of how many ranks: all that says what a rank has of a tensor."""

    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class TensorCut:
    """The dimension along which a tensor is dealt out."""

    dim: int
    """Counted from the end."""
    parts: int = 1
    """Matrices that lie one behind the other along it, each dealt out by itself."""
    padded: bool = False
    """Where the ranks do not divide it, the last ones' shares end with zeros."""

    def per_rank(self, count: int, size: int, what: str) -> int:
        """How much of `count` each rank gets of each part.

        Raises:
            InputError: The ranks do not divide it.
        """
        each = count // self.parts
        if self.padded:
            return -(-each // size)
        if count % self.parts or each % size:
            raise InputError(f"--tp {size}: {what} is {each} wide, which {size} does not divide")
        return each // size

    def ranges(self, count: int, size: int, rank: int, what: str) -> list[tuple[int, int]]:
        """First and last + 1 of what a rank gets, part by part. Raises as `per_rank`."""
        mine = self.per_rank(count, size, what)
        each = count // self.parts
        first = min(rank * mine, each)
        last = min(first + mine, each)
        return [(part * each + first, part * each + last) for part in range(self.parts)]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """How one model is cut."""

    styles: dict[str, str]
    """transformers' style by the name of a module or tensor, layers' numbers as `*`."""
    whole_experts: bool = False
    """Whether a rank has some experts whole, and not a share of each."""

    def style(self, name: str) -> str | None:
        """How a module or a tensor of that name is treated; None: whole on every rank."""
        return self.styles.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))

    def sums_experts(self, name: str) -> bool:
        """Whether a module is a mixture's experts, whose outputs ranks add up."""
        return self.style(name) == _EXPERTS

    def cut(self, name: str, num_dims: int) -> TensorCut | None:
        """How a tensor is cut; None: it is whole on every rank."""
        owner, _, leaf = name.rpartition(".")
        own = self.style(name)
        if self.whole_experts and self.style(owner) == _EXPERTS:
            return TensorCut(-num_dims)
        style = own or self.style(owner)
        if style == "packed_colwise":
            return TensorCut(-2, parts=2)
        if style in ("rowwise", "rowwise_split_input"):
            return None if leaf == "bias" else TensorCut(-1)
        if style in ("colwise", "colwise_gather_output", "embedding_rowwise"):
            padded = style != "colwise"
            return TensorCut(-min(num_dims, 2), padded=padded)
        return None


def plan_of(model: nn.Module, *, whole_experts: bool = False) -> TensorPlan:
    """The plan that transformers has of a model.

    Args:
        model: Its modules; weights are not looked at.
        whole_experts: Deal experts out whole.

    Raises:
        InputError: It has none, or one with a style that is not carried out here, or no experts
            that could be dealt out.
    """
    found: dict[str, str] = dict(model.tp_plan or {})  # type: ignore[arg-type]
    family = model.config.model_type  # type: ignore[union-attr]
    if not any(style.startswith("rowwise") for style in found.values()):
        raise InputError(
            f"--tp: transformers has no plan of how to cut models of the family {family};"
            " leave out --tp, or use --replicas"
        )
    for name, style in found.items():
        if style not in _LAYERS:
            raise InputError(
                f"--tp: models of the family {family} cut {name} as {style}, which is not carried"
                " out here; leave out --tp, or use --replicas"
            )
    if whole_experts and _EXPERTS not in found.values():
        raise InputError(
            f"--expert-parallel: models of the family {family} have no experts that could be dealt"
            " out; leave it out"
        )
    return TensorPlan(found, whole_experts=whole_experts)


def check_heads(config: Any, size: int) -> None:
    """Raise `InputError` where ranks do not divide a configuration's heads."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    for kind, count in (
        ("attention heads", heads),
        ("key-value heads", getattr(text, "num_key_value_heads", None) or heads),
    ):
        if count % size:
            fitting = [one for one in range(2, size) if not count % one and not heads % one]
            cure = f"give --tp {fitting[-1]}" if fitting else "leave out --tp"
            raise InputError(f"--tp {size}: the model has {count} {kind}; {cure}")
