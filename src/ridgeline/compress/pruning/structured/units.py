"""Neurons of MLPs and heads of attention: what each is worth, which stay, and how others go.

A neuron or a head is seen by one matrix W alone, the one that reads it. Of input j:

    magnitude   ‖W:ⱼ‖²
    wanda       ‖W:ⱼ‖² · ‖xⱼ‖², the energy of what it adds to the output over calibration
    taylor      Σᵢ (Wᵢⱼ · ∂L/∂Wᵢⱼ)²   (arXiv 1906.10771, equation 8, for a group)

Squares add up: the worth of a head is the sum over its inputs. With grouped queries (arXiv
2305.13245) several query heads read one pair of key and value heads, and transformers wants as many
in every group. So either groups go whole, which also makes the KV cache smaller, or every group
loses as many query heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ridgeline.compress.pruning.structured.places import AttentionPlace, Cut, MlpPlace
from ridgeline.compress.pruning.weights import drawn
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_largest
from ridgeline.records.scheme import Pruning


def worth(
    weight: Tensor,
    pruning: Pruning,
    seen: CalibrationStatistics | None,
    importance: Tensor | None = None,
) -> Tensor:
    """The worth of each input, [in] float32.

    Args:
        weight: [out, in] of the matrix that reads the inputs.
        pruning: Its criterion.
        seen: `square_norm`, with "wanda".
        importance: [out, in] of `weights.importance_of`, with "taylor".

    Raises:
        InputError: The criterion is one for single weights.
    """
    energy = weight.float().square().sum(dim=0)
    match pruning.criterion:
        case "magnitude":
            return energy
        case "wanda":
            assert seen is not None
            assert seen.square_norm is not None, "calibration was to gather square_norm"
            return energy * seen.square_norm.float()
        case "taylor":
            assert importance is not None, "weights.importance_of goes through the whole model"
            return importance.float().sum(dim=0)
        case "random":
            return drawn(weight).sum(dim=0)
        case "sparsegpt":
            raise InputError(
                f"sparsegpt repairs single weights and does not rank {pruning.structure}; choose"
                " wanda, magnitude or taylor"
            )


MULTIPLE = 8
"""Kernels run on whole tiles."""


def kept_width(width: int, share: float, multiple: int = MULTIPLE) -> int:
    """Neurons of each layer that stay.

    Args:
        width: As it is.
        share: That goes, about.
        multiple: That the width stays one of, if it is.

    Raises:
        InputError: None would stay.

    >>> kept_width(352, 0.25), kept_width(352, 0.25, multiple=32)
    (264, 256)
    """
    step = next((size for size in (multiple, MULTIPLE) if width % size == 0), 1)
    kept = round(width * (1.0 - share) / step) * step
    if not 0 < kept <= width:
        raise InputError(f"a share of {share:g} leaves {kept} of {width} neurons; prune fewer")
    return kept


def kept_neurons(worth: Tensor, kept: int) -> Tensor:
    """Indices of those worth most, in order.

    Args:
        worth: [width] (`columns.worth` of the MLP's output matrix).
        kept: How many.
    """
    return keep_largest(worth, len(worth) - kept).nonzero()[:, 0]


def neuron_cuts(place: MlpPlace, kept: Tensor) -> list[Cut]:
    """The cuts that prune all other neurons of a block."""
    inner = [Cut(linear=name, side="outputs", kept=kept) for name in place.inner]
    return [*inner, Cut(linear=place.outer, side="inputs", kept=kept)]


_WHOLE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How many there are."""

    query: int
    kv: int
    dim: int
    """Numbers of one head."""

    @property
    def per_group(self) -> int:
        """Query heads that read one key-value head."""
        return self.query // self.kv


def kept_heads(heads: Heads, share: float) -> Heads:
    """What stays of each layer: whole groups go if the share is a whole number of them.

    Raises:
        InputError: It is neither that, nor a whole number of query heads of each group.
    """
    groups, per_group = heads.kv * share, heads.per_group * share
    if _is_whole(groups) and round(groups) < heads.kv:
        kv = heads.kv - round(groups)
        return Heads(query=kv * heads.per_group, kv=kv, dim=heads.dim)
    if _is_whole(per_group) and round(per_group) < heads.per_group:
        query = heads.kv * (heads.per_group - round(per_group))
        return Heads(query=query, kv=heads.kv, dim=heads.dim)
    shares = {k / heads.kv for k in range(1, heads.kv)}
    shares |= {k / heads.per_group for k in range(1, heads.per_group)}
    offered = ", ".join(f"{one:.3g}" for one in sorted(shares)) or "none: there is one head"
    raise InputError(
        f"a share of {share:g} of {heads.query} heads in {heads.kv} key-value groups is no whole"
        f" number of groups, nor of heads in each; shares that are: {offered}"
    )


def chosen_heads(worth: Tensor, heads: Heads, kept: Heads) -> tuple[Tensor, Tensor]:
    """Indices of query heads and of key-value heads that stay, each in order.

    Args:
        worth: [query heads · dim] (`columns.worth` of the output matrix).
        heads: What there is.
        kept: What stays (`kept_heads`).
    """
    by_group = worth.reshape(heads.kv, heads.per_group, heads.dim).sum(dim=-1)
    if kept.kv < heads.kv:
        kv = keep_largest(by_group.sum(dim=-1), heads.kv - kept.kv).nonzero()[:, 0]
        query = (kv[:, None] * heads.per_group + torch.arange(heads.per_group)).reshape(-1)
        return query, kv
    stays = keep_largest(by_group, heads.per_group - kept.per_group)
    return stays.reshape(-1).nonzero()[:, 0], torch.arange(heads.kv)


def head_cuts(place: AttentionPlace, dim: int, query: Tensor, kv: Tensor) -> list[Cut]:
    """The cuts that prune all other heads of a block."""
    queries, keys_values = numbers_of(query, dim), numbers_of(kv, dim)
    return [
        Cut(linear=f"{place.owner}.{place.query}", side="outputs", kept=queries),
        *(
            Cut(linear=f"{place.owner}.{name}", side="outputs", kept=keys_values)
            for name in place.keys_values
        ),
        Cut(linear=f"{place.owner}.{place.output}", side="inputs", kept=queries),
    ]


def recount_heads(block: nn.Module, place: AttentionPlace, kept: Heads) -> None:
    """Tell attention in memory how many heads it has now."""
    owner = block.get_submodule(place.owner)
    counts = {
        "num_heads": kept.query,
        "num_attention_heads": kept.query,
        "num_key_value_heads": kept.kv,
        "num_key_value_groups": kept.per_group,
    }
    for name, count in counts.items():
        if hasattr(owner, name):
            setattr(owner, name, count)


def numbers_of(heads: Tensor, dim: int) -> Tensor:
    """The rows, or columns, of some heads."""
    return (heads[:, None] * dim + torch.arange(dim)).reshape(-1)


def _is_whole(number: float) -> bool:
    return number > _WHOLE and abs(number - round(number)) < _WHOLE
