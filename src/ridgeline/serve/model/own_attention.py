"""Families that attend by code of their own, past transformers' interface, taken to the blocks.

Each family's way from hidden states to queries, keys and values stays its own; what is replaced is
the product of the three, and only while a step is computed over blocks: without `Pages` the model
computes as it always did, which is what the trial at load compares with.

Linear biases (ALiBi: Press et al., "Train short, test long", 2108.12409) add m·j to the score of
key j, with a slope m for each head; what they subtract for the query is the same for all its keys,
and so no weight changes by it. The products of queries and keys take the bias up in four more
columns, so that no kernel knows of it:

    scale · (q·k + [c c' c c']·[b b b' b']) = scale · q·k + m·j    with c + c' = 1 / scale
                                                                   and b + b' = m·j

in which c' and b' are what the dtype has rounded off c and b.

Shapes: T tokens, H heads, D head size.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.serve.model.attention import KEYWORD, Pages, attend, pass_on

SLOPES_TO = 8.0
"""The slopes of ALiBi go from 1 down to 2 to the power of minus this."""
BIASED = frozenset({"BloomAttention", "MptAttention"})
"""Attention whose keys carry a bias: eight bits for all columns of a key would not hold it."""


@dataclass(slots=True)
class _Step:
    """What the layers of one model need of the step that is computed."""

    pages: Pages | None = None
    positions: Tensor | None = None
    """The place of each token in its sequence, [T]."""


def take_over(model: nn.Module) -> None:
    """Lead the attention of every model to the blocks, that of the families below by hand."""
    pass_on(model)
    found = [(one, _WAYS[type(one).__name__]) for one in model.modules() if _is_known(one)]
    if not found:
        return
    step = _Step()
    for module, lead in found:
        lead(module, step)
    model.set_attn_implementation = _stays
    _Entry(model, step)
    if model.base_model is not model:
        _Entry(model.base_model, step)  # type: ignore[arg-type]


def _stays(_: str) -> None:
    """Such a model has one attention, which transformers cannot exchange."""


def adds_bias(model: nn.Module) -> bool:
    """Whether its keys carry a bias for their positions."""
    return any(type(one).__name__ in BIASED for one in model.modules())


def _is_known(module: nn.Module) -> bool:
    if type(module).__name__ not in _WAYS or _passes_interface(module):
        return False
    # Falcon's eager attention adds a bias twice, so that nothing is there to compare with.
    return not getattr(getattr(module, "config", None), "alibi", False)


def _passes_interface(module: nn.Module) -> bool:
    """Whether the family has come to attend as others do (GPT-J since transformers 5.24)."""
    return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(type(module).forward)


class _Entry:
    """Notes the step where a model is called with one, and forgets it behind the call."""

    def __init__(self, model: nn.Module, step: _Step) -> None:
        self._step = step
        self._knows_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._reads_mask = any(type(one).__name__ == "BloomAttention" for one in model.modules())
        self._mine = False
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, _: nn.Module, args: Any, given: dict[str, Any]) -> Any:
        pages = given.pop(KEYWORD, None)
        if pages is None:
            return args, given
        self._mine = True
        positions = given["position_ids"]
        self._step.pages, self._step.positions = pages, positions[0]
        if not self._knows_positions:
            del given["position_ids"]
        if not self._reads_mask:  # one of four axes is taken as it is, and none is made
            given["attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        return args, given

    def _end(self, *_: Any) -> None:
        if self._mine:
            self._mine = False
            self._step.pages = self._step.positions = None


def alibi_slopes(heads: int) -> Tensor:
    """The slope of each head, [H] float32.

    For a number that is no power of two: every second one of the next power's, then the others.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.ceil(math.log2(heads))
    slopes = 2.0 ** -(torch.arange(1, power + 1, dtype=torch.float64) * (SLOPES_TO / power))
    if power != heads:
        slopes = torch.cat([slopes[1::2], slopes[::2]])[:heads]
    return slopes.float()


def _attended(
    module: nn.Module,
    step: _Step,
    states: tuple[Tensor, Tensor, Tensor],
    scale: float,
    window: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """[1, H, T, D] queries, keys and values to [1, T, H, D], with a bias [H, T] for the keys."""
    query, key, value = states
    query, key = query.to(value.dtype), key.to(value.dtype)  # some turn them in float32
    if bias is not None:
        query, key = _with_bias(query, key, bias, scale)
    pages: Any = {KEYWORD: step.pages}
    return attend(module, query, key, value, None, scale, 0.0, window, **pages)[0]


def _with_bias(query: Tensor, key: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Queries and keys with four more columns, whose product is the bias over the scale."""
    dtype = query.dtype
    columns = [one for part in _halves(bias, dtype) for one in (part, part)]
    factors = torch.stack([*_halves(torch.tensor(1 / scale), dtype)] * 2).to(query.device)
    factors = factors.expand(*query.shape[:3], 4)
    return torch.cat([query, factors], -1), torch.cat([key, torch.stack(columns, -1)[None]], -1)


def _halves(number: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A float32 tensor as the sum of two of a narrower dtype."""
    high = number.to(dtype)
    return high, (number - high.float()).to(dtype)


Lead = Callable[[Any, _Step], None]


def _by_product(root: str = "") -> Lead:
    """The way of families that have a method for the product alone, `_attn`.

    Args:
        root: Their name for what scores are divided by; empty: scores are as they are.
    """

    def lead(module: Any, step: _Step) -> None:
        own, scale = module._attn, 1 / getattr(module, root) if root else 1.0
        if not hasattr(module, "layer_idx"):
            module.layer_idx = module.layer_id
        local = getattr(module, "attention_type", None) == "local"
        window = module.config.window_size if local else None

        def product(query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Any:
            if step.pages is None:
                return own(query, key, value, *more, **named)
            out = _attended(module, step, (query, key, value), scale, window)
            return out.transpose(1, 2), None

        module._attn = product

    return lead


def _falcon(module: Any, step: _Step) -> None:
    """Falcon's with rotary positions; keys that its groups share are kept once."""
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    own, scale = module.forward, module.inv_norm_factor
    share = module.num_heads // module.num_kv_heads if module.new_decoder_architecture else 1

    def forward(hidden_states: Tensor, *more: Any, **named: Any) -> Any:
        if step.pages is None:
            return own(hidden_states, *more, **named)
        split = module._split_heads(module.query_key_value(hidden_states))
        query, key, value = (one.transpose(1, 2) for one in split)
        key, value = key[:, ::share], value[:, ::share]
        query, key = apply_rotary_pos_emb(query, key, *named["position_embeddings"])
        out = _attended(module, step, (query, key, value), scale)
        return module.dense(out.flatten(2)), None

    module.forward = forward


def _bloom(module: Any, step: _Step) -> None:
    """Bloom's, whose biases are rounded to the model's dtype."""
    own, slopes = module.forward, alibi_slopes(module.num_heads)

    def forward(hidden_states: Tensor, residual: Tensor, *more: Any, **named: Any) -> Any:
        if step.pages is None:
            return own(hidden_states, residual, *more, **named)
        split = module._reshape(module.query_key_value(hidden_states))
        bias = _biases(slopes, step, hidden_states).to(hidden_states.dtype).float()
        out = _attended(module, step, split, module.inv_norm_factor, bias=bias)
        return module.dense(out.flatten(2)) + residual, None

    module.forward = forward


def _mpt(module: Any, step: _Step) -> None:
    """MPT's, whose biases are float32."""
    own, slopes = module.forward, alibi_slopes(module.n_heads)

    def forward(hidden_states: Tensor, *more: Any, **named: Any) -> Any:
        if step.pages is None:
            return own(hidden_states, *more, **named)
        mixed = module.Wqkv(hidden_states)
        if module.clip_qkv:
            mixed = mixed.clamp(-module.clip_qkv, module.clip_qkv)
        shape = (*hidden_states.shape[:2], 3, module.n_heads, module.head_dim)
        split = mixed.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        bias = _biases(slopes, step, hidden_states)
        out = _attended(module, step, split, module.softmax_scale, bias=bias)
        return module.out_proj(out.flatten(2)), None

    module.forward = forward


def _biases(slopes: Tensor, step: _Step, beside: Tensor) -> Tensor:
    """The bias of each token's key for each head, [H, T] float32."""
    assert step.positions is not None
    return slopes.to(beside.device)[:, None] * step.positions


_WAYS: dict[str, Lead] = {
    "GPTJAttention": _by_product("scale_attn"),
    "CodeGenAttention": _by_product("scale_attn"),
    "GPTNeoSelfAttention": _by_product(),
    "GPTNeoXJapaneseAttention": _by_product("norm_factor"),
    "FalconAttention": _falcon,
    "BloomAttention": _bloom,
    "MptAttention": _mpt,
}
"""By the name of the class, since the trial at load says whether it does as these do."""
