"""Whether a model computes over blocks what it computes by itself; asked at every load.

Not every family's attention passes through transformers' interface (alibi, attention of their own,
keywords dropped on the way), and those would give wrong logits without an error. So two prompts go
through the model plainly, one at a time, and through scattered blocks, packed together and in
chunks; every layer must attend exactly once, and the logits must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words
from ridgeline.kernels.paged_attention import PackedTokens
from ridgeline.serve.cache import KvForm, KvPool, KvShape
from ridgeline.serve.model.attention import (
    BY_INDEX,
    KEYWORD,
    NAME,
    Attended,
    NoPages,
    Pages,
)
from ridgeline.serve.model.batch import spans_of
from ridgeline.serve.weights.rounding import has_rounded

if TYPE_CHECKING:
    from ridgeline.serve.model.recurrent import RecurrentLayers

LENGTHS = (21, 10)
"""The lengths of the two prompts."""
CUTS = (13, 9)
"""Tokens of each prompt that the first step computes; the rest comes in the second: a chunk and one
more token."""
LARGEST_WINDOW = 128
"""A sliding window up to here is crossed by the longer prompt."""
BLOCK = 4
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.10}
"""The largest difference of logits over their spread; a wrong position or mask is above 0.3 in a
trained model, rounding a tenth of the tolerance."""


_PAST_INTERFACE = "its attention does not pass through transformers' interface"

_NOTHING_KEPT = "it keeps no keys and values"
_PLAIN = "on a plain prompt"
_OVER_BLOCKS = "where blocks stand for its cache and its mask"

Forward = Callable[[Tensor, Tensor, Pages, Tensor], Tensor]
"""Tokens [T], positions [T], pages and rows [R] to logits [R, V]."""


def kv_shapes(model: nn.Module, vocab: int) -> list[KvShape]:
    """Key-value heads and head size of each layer that keeps some, as it attends.

    A layer's own cache may hold less, from which its keys and values are made (latent attention);
    blocks hold what the attention is given. Layers that keep a state instead are passed over; where
    all do, there are no shapes.

    Raises:
        InputError: A layer keeps something else, or none keeps keys and values, or one sees only
            the chunk in which a token stands.
    """
    from transformers.cache_utils import DummyLayer

    text = model.config.get_text_config()  # type: ignore[union-attr,operator]
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        # Prompts of the trial are far shorter than a published model's chunks.
        chunk = text.attention_chunk_size
        raise _refusal(model, f"its layers see back to the last multiple of {chunk} tokens")
    tokens = _three_tokens(model, vocab)
    kept = getattr(_own_cache(model, tokens), "layers", [])
    count = states = 0
    for layer in kept:
        state_only = hasattr(layer, "conv_states") and not hasattr(layer, "keys")
        states += state_only
        if state_only or isinstance(layer, DummyLayer):
            continue
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not (isinstance(keys, Tensor) and isinstance(values, Tensor)) or keys.ndim != 4:
            raise _refusal(model, "a layer keeps something else than keys and values")
        count += 1
    if not count and states:
        return []
    if not count:
        raise _refusal(model, _NOTHING_KEPT)
    shapes = _attended(model, tokens)
    if len(shapes) < count:  # more: some attend with another layer's keys, and get blocks of theirs
        raise _refusal(model, _PAST_INTERFACE)
    return [shapes[layer] for layer in sorted(shapes)]


def _three_tokens(model: nn.Module, vocab: int) -> Tensor:
    return _prompts(vocab, (3,))[0].to(_device(model))


def _own_cache(model: nn.Module, tokens: Tensor) -> Any:
    """The cache that a model makes for itself; None: it makes none."""
    from ridgeline.serve.model.recurrent import CACHE_NAMES

    out = _quietly(model, _PLAIN, lambda: model(input_ids=tokens[None], use_cache=True))
    return next((out[name] for name in CACHE_NAMES if name in out), None)


def _attended(model: nn.Module, tokens: Tensor) -> dict[int, KvShape]:
    """The shape of what each layer gives the attention."""
    packed, positions, _ = _packed([(0, len(tokens))], torch.zeros(1, 1), tokens.device)
    pages = Pages(packed=packed, caches=[], counting=True)
    before = model.config._attn_implementation  # type: ignore[union-attr]
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    _quietly(
        model,
        _OVER_BLOCKS,
        lambda: model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            **{KEYWORD: pages},
        ),
    )
    model.set_attn_implementation(before)  # type: ignore[operator]
    return {call.layer: call.shape for call in pages.calls}


def recurrent_layers(model: nn.Module, vocab: int) -> RecurrentLayers | None:
    """The layers that keep states, ready for packed steps; None: the model has none.

    Raises:
        InputError: The model's code does not run, or keeps states in a cache of another kind.
    """
    from transformers.cache_utils import DynamicCache

    from ridgeline.serve.model.recurrent import RecurrentLayers, has_states

    if not _quietly(model, "to make a cache", lambda: has_states(model.config)):
        return None
    cache = _own_cache(model, _three_tokens(model, vocab))
    if cache is None:
        raise _refusal(model, _NOTHING_KEPT)
    if type(cache) is not DynamicCache:
        raise _refusal(model, f"its states are in a cache of its own, {type(cache).__name__}")
    return _quietly(  # type: ignore[no-any-return]
        model, "while its states are followed", lambda: RecurrentLayers(model, vocab)
    )


def check(
    model: nn.Module, shapes: list[KvShape], vocab: int, recurrent: RecurrentLayers | None = None
) -> list[Attended]:
    """Compare; leaves the model with the paged attention switched on.

    Args:
        model: As it was loaded.
        shapes: Of the layers that attend.
        vocab: Its number of words.
        recurrent: Its layers that keep states; None: it has none.

    Returns:
        How each layer called the attention.

    Raises:
        InputError: One line that names the family and what differs.
    """
    prompts = _two_prompts(model, vocab)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    plain = [
        _quietly(model, _PLAIN, lambda one=one: model(input_ids=one[None], use_cache=False)).logits[
            0, -1
        ]
        for one in prompts
    ]
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    calls: list[Attended] = []
    paged = _quietly(
        model,
        _OVER_BLOCKS,
        lambda: _in_two_steps(model, prompts, shapes, calls, recurrent=recurrent),
    )
    difference = worst_difference(paged, plain)
    if not difference <= _tolerance(model):
        raise _refusal(
            model,
            f"over KV blocks its logits differ from its own by {difference:.2g} of the spread",
        )
    return sorted(calls[: len(shapes)], key=lambda call: call.layer)


def logits_over_blocks(
    model: nn.Module, shapes: list[KvShape], vocab: int, recurrent: RecurrentLayers | None = None
) -> list[Tensor]:
    """The last logits of the two prompts, computed in two steps, once the paged attention is on."""
    with torch.inference_mode():
        return _in_two_steps(model, _two_prompts(model, vocab), shapes, recurrent=recurrent)


def refusal(
    model: nn.Module, shapes: list[KvShape], vocab: int, expected: list[Tensor], forward: Forward
) -> str | None:
    """Why `forward` cannot stand for the model, in words; None: it gives these logits over blocks.

    The tolerance is half of what the check at load grants attention over blocks.
    """
    try:
        with torch.inference_mode():
            found = _in_two_steps(model, _two_prompts(model, vocab), shapes, forward=forward)
    except Exception as error:  # the model's own modules run here; the start says what they raised
        return f"tried together, they raised {type(error).__name__}: {in_words(error)}"
    difference = worst_difference(found, expected)
    if difference <= _tolerance(model) / 2:
        return None
    return f"computed together, logits differ by {difference:.2g} of their spread"


def worst_difference(mine: list[Tensor], theirs: list[Tensor]) -> float:
    """The mean distance of two prompts' logits over their spread, of the worse prompt."""
    return max(
        float((a.float() - b.float()).abs().mean() / b.float().std().clamp_min(1e-6))
        for a, b in zip(mine, theirs, strict=True)
    )


def _tolerance(model: nn.Module) -> float:
    """The tolerance for how the model computes.

    Where activations are rounded to 8 bits, the last bit of a sum can turn into a whole level, so
    that float32 differs by as much as bfloat16 does.
    """
    dtype = model.dtype
    assert isinstance(dtype, torch.dtype)
    return max(TOLERANCE[dtype], TOLERANCE[torch.bfloat16] if has_rounded(model) else 0.0)


def _two_prompts(model: nn.Module, vocab: int) -> list[Tensor]:
    longest = LENGTHS[0]
    window = _window(model)
    if window is not None and window <= LARGEST_WINDOW:
        longest = max(longest, window + 8)
    return [one.to(_device(model)) for one in _prompts(vocab, (longest, LENGTHS[1]))]


def _in_two_steps(
    model: nn.Module,
    prompts: list[Tensor],
    shapes: list[KvShape],
    calls: list[Attended] | None = None,
    forward: Forward | None = None,
    recurrent: RecurrentLayers | None = None,
) -> list[Tensor]:
    """Last logits of each prompt, both packed into each step, their blocks interleaved.

    Where `calls` is given, layers write down there how they attend; each must, once a step.
    """
    forward = forward or own_forward(model, recurrent)
    attending = range(len(shapes)) if recurrent is None else recurrent.attending
    num_blocks = 2 * -(-len(prompts[0]) // BLOCK)
    device, dtype = _device(model), model.dtype
    assert isinstance(dtype, torch.dtype)
    pool = KvPool(
        shapes, num_blocks=num_blocks, block_size=BLOCK, form=KvForm(dtype), device=device
    )
    table = torch.arange(num_blocks).flip(0).view(-1, 2).T
    logits: list[Tensor] = []
    done: tuple[int, ...] = (0, 0)
    for ends in (CUTS, tuple(len(one) for one in prompts)):
        spans = list(zip(done, ends, strict=True))
        packed, positions, rows = _packed(spans, table, device)
        caches = pool.layers if recurrent is None else recurrent.by_layer(pool.layers)
        pages = Pages(packed=packed, caches=caches, counting=calls is not None)
        tokens = torch.cat([one[a:b] for one, (a, b) in zip(prompts, spans, strict=True)])
        logits = list(forward(tokens, positions, pages, rows))
        if calls is not None:
            if sorted(call.layer for call in pages.calls) != list(attending):
                raise _refusal(model, _PAST_INTERFACE)
            calls += pages.calls
        done = ends
    return logits


def own_forward(model: nn.Module, recurrent: RecurrentLayers | None = None) -> Forward:
    """A model's own way from tokens to logits, through all its modules."""
    states = None if recurrent is None else recurrent.new_pool()

    def given(pages: Pages) -> AbstractContextManager[dict[str, Any]]:
        if recurrent is None:
            return nullcontext({})
        return recurrent.computing(spans_of(pages.packed), states)

    def forward(tokens: Tensor, positions: Tensor, pages: Pages, rows: Tensor) -> Tensor:
        with given(pages) as keywords:
            out = model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=rows,
                **{KEYWORD: pages},
                **keywords,
            )
        logits: Tensor = out.logits[0]
        return logits

    return forward


def _packed(
    spans: list[tuple[int, int]], table: Tensor, device: torch.device
) -> tuple[PackedTokens, Tensor, Tensor]:
    """A step's description, its positions and its last rows."""
    counts = torch.tensor([0] + [b - a for a, b in spans])
    starts = counts.cumsum(0)
    positions = torch.cat([torch.arange(a, b) for a, b in spans])
    owner = torch.repeat_interleave(torch.arange(len(spans)), counts[1:])
    packed = PackedTokens(
        query_starts=starts.int().to(device),
        context_lengths=torch.tensor([b for _, b in spans], dtype=torch.int32, device=device),
        block_tables=table.int().contiguous().to(device),
        slots=(table[owner, positions // BLOCK] * BLOCK + positions % BLOCK).to(device),
        max_queries=int(counts.max()),
        max_context=max(b for _, b in spans),
    )
    return packed, positions.to(device), (starts[1:] - 1).to(device)


def _prompts(vocab: int, lengths: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, vocab, (length,), generator=generator) for length in lengths]


def _window(model: nn.Module) -> int | None:
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    window = getattr(config, "sliding_window", None)
    return window if isinstance(window, int) else None


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _quietly(model: nn.Module, where: str, forward: Any) -> Any:
    """Run a forward; whatever the family's code raises becomes one line, which says where."""
    try:
        with torch.inference_mode():
            return forward()
    except InputError:
        raise
    except NoPages as error:
        raise _refusal(model, str(error)) from error
    except Exception as error:  # any code of any family runs here
        raise _refusal(model, _why_not(model, where, error)) from error


def _why_not(model: nn.Module, where: str, error: Exception) -> str:
    if where == _OVER_BLOCKS and getattr(model.config, "index_topk", None):
        return BY_INDEX
    raised = f"{type(error).__name__}, {in_words(error)}"
    return f"its own code does not run {where} ({raised.rstrip('.')})"


def _refusal(model: nn.Module, why: str) -> InputError:
    family = model.config.model_type  # type: ignore[union-attr]
    return InputError(
        f"models of the family {family} cannot be served over a paged KV cache: {why}; "
        "docs/how-to/serve-a-model.md lists the families that can"
    )
