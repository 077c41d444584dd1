"""Every operator of a transformer layer, forward and backward, with its FLOPs and bytes.

Conventions, the same for all:

- a matmul (rows x inner) · (inner x outer) does 2 · rows · inner · outer FLOPs; its backward is
  two more of them, for the gradient of the input and of the weight;
- each operand is read once and each result written once, as by a kernel whose blocks stay in
  cache (Williams et al. 2009, section 3.1: compulsory traffic);
- attention is fused (Dao, FlashAttention-2, 2307.08691): 4 · pairs · head size FLOPs per head
  forward, 2.5 times that backward; pairs that the mask or a window hides are not counted;
- element-wise work comes in fused chains; norms, activations and additions count few FLOPs per
  element, all far left of any ridge;
- routed experts get equal shares of the tokens (of few tokens, the expected number of experts);
- a layer with a state has a scan in place of attention, or beside it (`state_operators.py`).

With `tp` the shapes are one device's share (Shoeybi et al., 1909.08053, section 3); collectives
are not operators of this list. `train` is forward and backward of batch · seq tokens, `prefill`
the forward alone, `decode` one new token per sequence after `seq` tokens in the KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ridgeline.cost.attention_operators import attention_operators
from ridgeline.cost.operator import ModelOperator, Pass, elementwise, matmul
from ridgeline.cost.state_operators import state_operators
from ridgeline.errors import InputError
from ridgeline.models.counts import is_decoder
from ridgeline.models.spec import (
    Experts,
    ModelSpec,
    attends,
    has_state,
    is_dense,
    is_mixture,
    is_windowed,
    keeps_keys,
    kind_of,
    num_layers,
    with_attention_of,
)

Phase = Literal["train", "prefill", "decode"]


def layer_operators(
    model: ModelSpec,
    seq: int,
    batch: int,
    tp: int = 1,
    phase: Phase = "train",
    dtype: str = "bf16",
    *,
    layer: int | None = None,
) -> list[ModelOperator]:
    """Operators of one layer, in order; by default of the last (experts come after dense layers).

    >>> from ridgeline.models import load_model
    >>> operators = layer_operators(load_model("llama-3-8b"), 4096, 1, phase="prefill")
    >>> [(one.name, one.shape) for one in operators][:2]
    [('norm', '4096 x 4096'), ('qkv', '4096 x 4096 · 4096 x 6144')]
    >>> round(sum(one.flops for one in operators) / 4096 / 1e6)
    470
    """
    place = num_layers(model) - 1 if layer is None else layer
    step = _step(model, seq, batch, tp, phase, dtype)
    window = model.sliding_window if is_windowed(model, place) else 0
    found = _elementwise_norms(model, step)
    if attends(model, place):
        found += attention_operators(
            with_attention_of(model, place),
            step,
            window=window,
            causal=_is_causal(model, place),
            own_keys=keeps_keys(model, place),
        )
    if model.state is not None and has_state(model, place):
        found += state_operators(model, model.state, step)
    if is_decoder(model, place):
        found += attention_operators(model, step, window=0, causal=False, crossing=True)
    if model.experts is not None and is_mixture(model, place):
        found += _mixture(model, model.experts, step)
    elif is_dense(model, place):
        found += _mlp(model, model.ffn // tp, step, "")
    found.append(_residuals(model, step, place))
    return _with_backward(found, step)


def end_operators(
    model: ModelSpec,
    seq: int,
    batch: int,
    tp: int = 1,
    phase: Phase = "train",
    dtype: str = "bf16",
) -> list[ModelOperator]:
    """What stands before the first layer and behind the last: embedding, head, loss.

    Serving needs the logits of each sequence's last token alone.
    """
    step = _step(model, seq, batch, tp, phase, dtype)
    width = step.activation_bytes
    found = [
        elementwise("embedding", step.tokens, model.hidden, passes=(2, 3), flops=0, step=step),
        elementwise("final norm", step.tokens, model.hidden, passes=(2, 3), flops=5, step=step),
    ]
    rows = step.tokens if step.trains or model.kind != "decoder" else batch
    outputs = {"lm": model.vocab, "masked-lm": model.vocab, "pre-training": model.vocab}
    columns = outputs.get(model.head, model.num_classes) // tp
    if columns:
        rows = rows if model.head in outputs else batch
        found.append(matmul("head", rows, model.hidden, columns, step=step))
    found = _with_backward(found, step)
    if step.trains and columns:
        logits = rows * columns
        found.append(
            ModelOperator(
                name="loss",
                direction="forward",
                kind="elementwise",
                shape=f"{rows} x {columns}",
                dtype=dtype,
                flops=6.0 * logits,
                moved_bytes=2.0 * width * logits,
            )
        )
    return found


def model_operators(
    model: ModelSpec,
    seq: int,
    batch: int,
    tp: int = 1,
    phase: Phase = "train",
    dtype: str = "bf16",
) -> list[ModelOperator]:
    """All operators of one pass; those that are alike stand once, with their `count`.

    >>> from ridgeline.models import load_model
    >>> operators = model_operators(load_model("llama-3-8b"), 4096, 1)
    >>> [one.count for one in operators if one.name in ("qkv", "norm", "head")]
    [64, 32, 1]
    """
    first = model.layers if phase == "decode" and model.kind == "encoder-decoder" else 0
    counts: dict[ModelOperator, int] = {}
    kinds: dict[tuple[object, ...], list[int]] = {}
    key: tuple[object, ...]
    for layer in range(first, num_layers(model)):
        key = (is_mixture(model, layer), is_decoder(model, layer), is_windowed(model, layer))
        key = (*key, keeps_keys(model, layer), kind_of(model, layer))
        kinds.setdefault(key, []).append(layer)
    ends = end_operators(model, seq, batch, tp, phase, dtype)
    before = [one for one in ends if one.name == "embedding"]
    for one in before:
        _count(counts, one, 1)
    for alike in kinds.values():
        for one in layer_operators(model, seq, batch, tp, phase, dtype, layer=alike[0]):
            _count(counts, one, len(alike))
    for one in ends:
        if one not in before:
            _count(counts, one, 1)
    passed = [replace(one, count=count) for one, count in counts.items()]
    return sorted(passed, key=lambda one: one.direction == "backward")


def _count(counts: dict[ModelOperator, int], one: ModelOperator, layers: int) -> None:
    alone = replace(one, count=1)
    counts[alone] = counts.get(alone, 0) + one.count * layers


def _is_causal(model: ModelSpec, layer: int) -> bool:
    return model.kind == "decoder" or is_decoder(model, layer)


def _step(model: ModelSpec, seq: int, batch: int, tp: int, phase: Phase, dtype: str) -> Pass:
    if min(seq, batch, tp) < 1:
        raise InputError(f"seq {seq}, batch {batch}, tp {tp}: each must be 1 or more")
    if model.heads % tp:
        raise InputError(
            f"tp {tp} does not divide the {model.heads} heads of {model.name}; take a divisor"
        )
    if phase == "decode" and model.kind in ("encoder", "vision"):
        raise InputError(f"{model.name} generates no tokens; use --phase prefill or train")
    return Pass(phase=phase, seq=seq, batch=batch, tp=tp, dtype=dtype)


def _elementwise_norms(model: ModelSpec, step: Pass) -> list[ModelOperator]:
    norm = elementwise("norm", step.tokens, model.hidden, passes=(2, 3), flops=5, step=step)
    return [replace(norm, count=model.norms_per_layer)]


def _residuals(model: ModelSpec, step: Pass, layer: int) -> ModelOperator:
    """One addition behind attention and one behind the MLP; a parallel block adds both at once."""
    kind = kind_of(model, layer)
    parts = (kind.attention or kind.state) + bool(kind.mlp)
    reads, flops, count = (4, 2, 1) if model.parallel_block else (3, 1, parts)
    one = elementwise(
        "residual", step.tokens, model.hidden, passes=(reads, reads), flops=flops, step=step
    )
    return replace(one, count=count)


def _mlp(
    model: ModelSpec, width: int, step: Pass, tag: str, rows: float | None = None, groups: float = 1
) -> list[ModelOperator]:
    """Up (with gate), activation, down; of `groups` experts with `rows` tokens each."""
    ups = 2 if model.gated_mlp else 1
    tokens = step.tokens if rows is None else rows
    chain = elementwise(
        f"{tag}activation",
        tokens * groups,
        width,
        passes=(ups + 1, 2 * ups + 1),
        flops=4 + ups,
        step=step,
    )
    return [
        matmul(f"{tag}up", tokens, model.hidden, ups * width, step=step, groups=groups),
        chain,
        matmul(f"{tag}down", tokens, width, model.hidden, step=step, groups=groups),
    ]


def _mixture(model: ModelSpec, experts: Experts, step: Pass) -> list[ModelOperator]:
    """Router, dispatch, the experts that get tokens, combination; and shared experts."""
    routed = step.tokens * experts.top_k
    chance = experts.top_k / experts.num_experts
    reached = experts.num_experts * (1.0 - (1.0 - chance) ** step.tokens)
    reached = min(reached, float(routed))
    h = model.hidden
    found = [
        matmul("router", step.tokens, h, experts.num_experts, step=step),
        elementwise("dispatch", routed, h, passes=(2, 2), flops=0, step=step),
        *_mlp(model, experts.ffn // step.tp, step, "expert ", routed / reached, reached),
        elementwise("combine", routed, h, passes=(2, 3), flops=2, step=step),
    ]
    if experts.num_shared:
        found += _mlp(model, experts.shared_ffn // step.tp, step, "shared ")
    return found


def _with_backward(forward: Sequence[ModelOperator], step: Pass) -> list[ModelOperator]:
    """The backward operators behind the forward ones, in reverse order."""
    plain = [replace(one, backward=()) for one in forward]
    if not step.trains:
        return plain
    late = (replace(back, count=one.count) for one in reversed(forward) for back in one.backward)
    return [*plain, *late]
