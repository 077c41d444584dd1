"""One sequence lies over the `cp` ranks: which tokens each rank has, and attention among them.

Causal attention works more for later tokens. With 2 · cp chunks of equal length, rank r takes the
r-th from the front and the r-th from the back, so that all ranks have the same work ("zig-zag";
Llama 3, arXiv 2407.21783, section 3.3.2; striping by single tokens, Brandon et al.,
arXiv 2311.09431, balances as well but makes every block causal):

    cp = 2, chunks 0 1 2 3      rank 0: 0 3      rank 1: 1 2

Only attention looks at other ranks' tokens; norms, MLPs and losses do not. Position ids travel with
the tokens, and labels are shifted already, so cutting loses nothing. `ring_attention.py` is the
attention; it is registered in transformers' attention interface under the name `ridgeline_ring`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.train.batch import Batch
from ridgeline.train.parallel.ring_attention import Ring, ring_attention
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import MicroBatch

NAME = "ridgeline_ring"
_REFUSED = {
    "sliding_window": "a sliding window",
    "s_aux": "attention sinks",
    "softcap": "capped attention scores",
    "position_bias": "a learned position bias",
}
"""What transformers hands to attention that the ring does not compute, and its name."""


def cut_sequences(batch: MicroBatch, ranks: Ranks) -> MicroBatch:
    """This rank's tokens of each sequence: its chunk from the front, then that from the back.

    Whatever is not cut is given back as it is.

    Raises:
        InputError: The sequence does not divide into 2 · cp chunks.
    """
    cp = ranks.size("cp")
    if cp == 1:
        return batch
    assert isinstance(batch, Batch)  # a recipe of images has no cp
    place = chosen_tokens(batch.input_ids.shape[1], cp, ranks.index("cp")).to(
        batch.input_ids.device
    )
    return replace(
        batch,
        input_ids=batch.input_ids[:, place].contiguous(),
        labels=batch.labels[:, place].contiguous(),
        position_ids=batch.position_ids[:, place].contiguous(),
        natural=False,
    )


def chosen_tokens(seq: int, cp: int, rank: int) -> Tensor:
    """Indices into the sequence of the tokens that a rank has.

    >>> chosen_tokens(8, 2, 0).tolist(), chosen_tokens(8, 2, 1).tolist()
    ([0, 1, 6, 7], [2, 3, 4, 5])
    """
    if seq % (2 * cp):
        raise InputError(
            f"data.seq {seq} does not divide into 2 x cp = {2 * cp} chunks; change data.seq or"
            " layout.cp"
        )
    chunks = torch.arange(seq).chunk(2 * cp)
    return torch.cat([chunks[rank], chunks[2 * cp - 1 - rank]])


def use_ring_attention(model: PreTrainedModel, ranks: Ranks) -> None:
    """Make every attention of a model, or of a pipeline stage, look around the `cp` ranks.

    Raises:
        InputError: The model's attention is of a kind that the ring does not compute.
    """
    if ranks.size("cp") == 1:
        return
    _refuse_other_kinds(model)
    attend = _Attend(Ring(group=ranks.group("cp"), rank=ranks.index("cp"), size=ranks.size("cp")))
    # transformers finds no mask function under this name and makes no mask.
    AttentionInterface.register(NAME, attend)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = NAME


def _refuse_other_kinds(model: PreTrainedModel) -> None:
    family = type(model).__name__
    kinds = {_kind_of(module) for module in model.modules()} | {_windows(model.config)}
    for kind in sorted(kinds - {""}):
        raise InputError(
            f"layout.cp: attention of {family} has {kind}, which context parallelism does not"
            " compute; use layout.cp = 1"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise InputError(
            f"layout.cp: {family} does not use transformers' attention interface; use layout.cp = 1"
        )


def _kind_of(attention: nn.Module) -> str:
    """What a module's attention does beyond causal softmax; empty: nothing."""
    if getattr(attention, "sinks", None) is not None:
        return "attention sinks"
    if getattr(attention, "attn_logit_softcapping", None):
        return "capped attention scores"
    if getattr(attention, "attention_dropout", 0.0):
        return "dropout of attention weights (attention_dropout)"
    return ""


def _windows(config: PretrainedConfig) -> str:
    """Whether any layer looks back only so far. Without `layer_types` all layers are alike."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    windowed = any("sliding" in kind for kind in kinds)
    return "a sliding window" if windowed and getattr(config, "sliding_window", None) else ""


class _Attend:
    """An attention function as transformers calls it. Shapes: [B, heads, S/cp, head size]."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._documents: Any = WeakTensorKeyDictionary()

    @torch.compiler.disable  # type: ignore[misc]
    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        refused = [kind for name, kind in _REFUSED.items() if others.get(name) is not None]
        if not getattr(module, "is_causal", True):
            refused.append("attention that is not causal")
        if dropout:
            refused.append("dropout of attention weights")
        if attention_mask is not None:
            refused.append("a mask of its own")
        if position_ids is None:
            refused.append("no position ids, which tell documents apart")
        if refused:
            raise InputError(
                f"layout.cp: {type(module).__name__} has {', '.join(refused)}: context parallelism"
                " does not compute that; use layout.cp = 1"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        starts = self._document_starts(position_ids, query.shape[0])
        query, key, value = (one.to(_type_of(value)) for one in (query, key, value))
        output = ring_attention(query, key, value, self._ring, scale=scale, starts=starts)
        return output.transpose(1, 2), None

    def _document_starts(self, position_ids: Any, rows: int) -> Tensor | None:
        """Where each token's document begins, of all ranks' tokens; None if nowhere but at 0.

        [cp, B, S/cp]. Asked by every layer of a pass with the same tensor, and gathered once.
        """
        if position_ids not in self._documents:
            self._documents[position_ids] = self._gathered_starts(position_ids, rows)
        found: Tensor | None = self._documents[position_ids]
        return found

    def _gathered_starts(self, position_ids: Tensor, rows: int) -> Tensor | None:
        ring = self._ring
        places = chosen_tokens(position_ids.shape[-1] * ring.size, ring.size, ring.rank)
        mine = (places.to(position_ids.device) - position_ids).expand(rows, -1).contiguous()
        all_ = [torch.empty_like(mine) for _ in range(ring.size)]
        dist.all_gather(all_, mine, group=ring.group)
        starts = torch.stack(all_)
        return starts if bool(starts.any()) else None


def _type_of(value: Tensor) -> torch.dtype:
    """What attention is computed in: autocast's type, as in torch's own attention, or the value's.

    Rotation leaves queries and keys in the residual stream's type, which autocast keeps at fp32.
    """
    kind = value.device.type
    if torch.is_autocast_enabled(kind):
        cast: torch.dtype = torch.get_autocast_dtype(kind)
        return cast
    return value.dtype
