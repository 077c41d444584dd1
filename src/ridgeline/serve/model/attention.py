"""Our paged attention behind transformers' attention interface.

transformers looks up an attention function by name for every layer, hands it the queries, keys and
values of the layer with rotary embedding applied, and passes on any further keyword that the model
was called with. So `model(..., ridgeline_pages=Pages(...))` reaches `attend` in every layer, past
layers that drop keywords, too (`pass_on`), and a model needs no change. The whole step is one
packed row: input ids are [1, T].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, paged_attention, write_cache
from ridgeline.serve.cache import KvShape

NAME = "ridgeline_paged"
"""The name under which transformers knows it."""
KEYWORD = "ridgeline_pages"
"""The keyword of the model's forward by which `Pages` travels."""


BY_INDEX = "an index of its own chooses the tokens that its attention sees"
"""Why sparse attention is refused, whose choice the blocks do not know."""


class NoPages(ValueError):
    """A model's layer called the attention without the context: it drops unknown keywords."""


@dataclass(frozen=True, slots=True)
class Attended:
    """One layer's call of the attention, as the model made it."""

    layer: int
    scale: float
    window: int | None
    softcap: float | None
    has_sinks: bool
    shape: KvShape
    """Its key-value heads, and the width of its keys or of its values, whichever is wider."""


@dataclass(slots=True)
class Pages:
    """What one forward needs beside the tokens."""

    packed: PackedTokens
    caches: list[LayerCache] | dict[int, LayerCache]
    """The caches of the layers that attend, by their index; none where calls are only counted."""
    calls: list[Attended] = field(default_factory=list)
    """Calls of the attention in order, where `counting`."""
    counting: bool = False
    adapted: bool = False
    """Some of its tokens have an adapter."""


@dataclass(slots=True)
class _Passed:
    """The pages of the forward that is under way."""

    pages: Pages | None = None


_PASSED = _Passed()


def pass_on(model: nn.Module) -> None:
    """Let the attention see what the model was called with, where layers drop keywords."""

    def begin(_: nn.Module, _args: Any, given: dict[str, Any]) -> None:
        _PASSED.pages = given.get(KEYWORD)

    def end(*_: Any) -> None:
        _PASSED.pages = None

    model.register_forward_pre_hook(begin, with_kwargs=True)
    model.register_forward_hook(end, always_call=True)


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers; again is harmless."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - transformers' signature; an engine never trains
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Write the keys and values to the layer's blocks, then attend over them.

    Args:
        module: The layer's attention, for its `layer_idx`.
        query: [1, H, T, D]
        key: [1, KV, T, D].
        value: [1, KV, T, E]; where E is not D, as in latent attention, the narrower of the two is
            kept with zeros behind it.
        attention_mask: None, see `_no_mask`; blocks say what is seen.
        scaling: Of the scores; None: 1 / √D.
        dropout: Ignored, as in evaluation.
        sliding_window: Tokens that a query sees, itself among them; None: all.
        softcap: Of the scores.
        s_aux: Sinks, a logit per head.
        others: Further keywords of the call; the one named `KEYWORD` is a `Pages`.

    Returns:
        [1, T, H, E] and no weights.

    Raises:
        NoPages: The model did not pass the keyword on, or chooses itself what is seen.
    """
    pages: Pages | None = others.get(KEYWORD) or _PASSED.pages
    if pages is None:
        raise NoPages("its layers do not pass keywords on to the attention")
    if attention_mask is not None:
        raise NoPages("its attention leaves out more tokens than its window")
    if others.get("block_indices") is not None:
        raise NoPages(BY_INDEX)
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if pages.counting:
        shape = (key.shape[1], max(key.shape[3], value.shape[3]))
        pages.calls.append(
            Attended(layer, scale, sliding_window, softcap, s_aux is not None, shape)
        )
        if not pages.caches:
            batch, heads, tokens, _ = query.shape
            return query.new_zeros(batch, tokens, heads, value.shape[3]), None
    cache = pages.caches[layer]
    queries, keys, values = _rows(query), _rows(key), _rows(value)
    if len(keys) != len(queries):
        raise NoPages("its attention keeps something else than a key for each token")
    wide = values.shape[-1]
    if wide != keys.shape[-1]:
        queries, keys, values = _equally_wide(queries, keys, values)
    write_cache(keys, values, cache, pages.packed)
    out = paged_attention(
        queries,
        cache,
        pages.packed,
        scale=scale,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out[None, ..., :wide].contiguous(), None  # models take a `view` of it


def _equally_wide(*states: Tensor) -> tuple[Tensor, ...]:
    """[T, H, D] each, with zeros up to the widest D: no score and no sum changes by them."""
    width = max(one.shape[-1] for one in states)
    return tuple(functional.pad(one, (0, width - one.shape[-1])) for one in states)


def _rows(states: Tensor) -> Tensor:
    """[1, H, T, D] to [T, H, D]; no copy where the model's projection came in that order."""
    return states[0].transpose(0, 1).contiguous()


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """What is seen follows from the blocks and the window."""
