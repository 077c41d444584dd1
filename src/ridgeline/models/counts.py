"""How many parameters a transformer has: exactly, by part and by layer.

Every figure equals what `sum(p.numel() for p in model.parameters())` says of the same model in
Hugging Face transformers; tests build each family on torch's meta device and compare. Buffers
(DeepSeek-V3's routing bias, rotary tables) are not parameters there and are not counted here.
Pure arithmetic over a `ModelSpec`.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, fields

from ridgeline.models.spec import (
    USUAL,
    Experts,
    LayerKind,
    ModelSpec,
    attends,
    has_state,
    is_dense,
    is_mixture,
    is_routed,
    is_windowed,
    keeps_keys,
    num_layers,
    with_attention_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters by the part that sharding treats alike. Parts add."""

    attention: int = 0
    """Projections with their biases, query and key norms, sinks, relative positions."""
    dense_mlp: int = 0
    routed_experts: int = 0
    shared_experts: int = 0
    """With the gate that scales them, where there is one."""
    router: int = 0
    norms: int = 0
    embedding: int = 0
    """Tokens, positions, segments or patches, and the projections beside them."""
    head: int = 0
    """What stands behind the final norm and is not the embedding: 0 for a tied head."""
    other: int = 0
    """Tensors that `ModelSpec.extra` names."""

    @property
    def total(self) -> int:
        """Parameters of all parts together."""
        return sum(getattr(self, name) for name in _PARTS)

    def __add__(self, more: Parameters) -> Parameters:
        return Parameters(**{name: getattr(self, name) + getattr(more, name) for name in _PARTS})

    def __mul__(self, times: int) -> Parameters:
        return Parameters(**{name: times * getattr(self, name) for name in _PARTS})


_PARTS = tuple(part.name for part in fields(Parameters))


def parameter_count(spec: ModelSpec) -> int:
    """All parameters of the model; a tensor that is used twice counts once.

    >>> from ridgeline.models.presets import preset
    >>> parameter_count(preset("Llama-3-8B"))
    8030261248
    """
    return parameter_parts(spec).total


def active_parameter_count(spec: ModelSpec) -> int:
    """Parameters that one token meets: all but the routed experts that it is not sent to.

    Embedding and head count in full, as most model cards have it (Mixtral-8x7B: 12.9 billion).
    GPT-OSS's card leaves the embedding out.
    """
    total = parameter_parts(spec)
    return total.total - total.routed_experts + active_routed_parameters(spec)


def active_routed_parameters(spec: ModelSpec) -> int:
    """Parameters of the routed experts that one token is sent to, over all layers."""
    if spec.experts is None:
        return 0
    one = total_layers_parameters(spec).routed_experts // spec.experts.num_experts
    return one * spec.experts.top_k


def parameter_parts(spec: ModelSpec) -> Parameters:
    """The whole model by part."""
    whole = total_layers_parameters(spec)
    ends = Parameters(
        embedding=embedding_parameters(spec),
        head=head_parameters(spec),
        norms=(_norm(spec, spec.hidden) * _final_norms(spec)) + _embedding_norm(spec),
        other=sum(spec.extra.values()),
    )
    return whole + ends


def total_layers_parameters(spec: ModelSpec) -> Parameters:
    """All layers together, without embedding, final norm and head."""
    whole = Parameters()
    for layer, times in _alike(
        spec.layers, spec.decoder_layers, spec.experts, spec.kinds, _attentions(spec)
    ):
        whole += layer_parameters(spec, layer) * times
    return whole


@functools.lru_cache(maxsize=256)
def _alike(
    encoder: int,
    decoder: int,
    experts: Experts | None,
    kinds: tuple[LayerKind, ...],
    attentions: tuple[tuple[bool, bool], ...],
) -> tuple[tuple[int, int], ...]:
    """A layer of each kind that two stacks have, and how many are like it."""
    each = kinds or (USUAL,) * (encoder + decoder)
    alike = [
        (
            is_routed(experts, kind, layer),
            layer >= encoder,
            layer in (0, encoder),
            kind,
            attentions[layer] if attentions else (),
        )
        for layer, kind in enumerate(each)
    ]
    return tuple((alike.index(kind), times) for kind, times in Counter(alike).items())


def _attentions(spec: ModelSpec) -> tuple[tuple[bool, bool], ...]:
    """Whether each layer has a window, and keys of its own; empty where that is all one."""
    if not (spec.windowed_attention or spec.values_are_keys or spec.key_sharing_layers):
        return ()
    layers = range(num_layers(spec))
    return tuple((is_windowed(spec, layer), keeps_keys(spec, layer)) for layer in layers)


def num_routed_layers(spec: ModelSpec) -> int:
    """Layers whose MLP is a mixture of experts.

    >>> from ridgeline.models.presets import preset
    >>> num_routed_layers(preset("DeepSeek-V3"))
    58
    """
    return sum(is_mixture(spec, layer) for layer in range(num_layers(spec)))


def is_decoder(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer attends to an encoder: the layers behind an encoder-decoder's first."""
    return layer >= spec.layers


def layer_parameters(spec: ModelSpec, layer: int) -> Parameters:
    """One layer by part; layers count from 0, an encoder's before its decoder's.

    >>> from ridgeline.models.presets import preset
    >>> layer_parameters(preset("Llama-3-8B"), 0).dense_mlp
    176160768
    """
    if not 0 <= layer < num_layers(spec):
        raise IndexError(f"{spec.name} has {num_layers(spec)} layers; there is no layer {layer}")
    attention = attention_parameters(spec, layer)
    norms = spec.norms_per_layer * _norm(spec, spec.hidden)
    if is_decoder(spec, layer):
        attention *= 2
        norms += _norm(spec, spec.hidden)
    if _is_first(spec, layer):
        attention += spec.relative_buckets * spec.heads
    if is_dense(spec, layer):
        dense = mlp(spec, spec.ffn, bias=spec.mlp_bias)
        return Parameters(attention=attention, dense_mlp=dense, norms=norms)
    experts = spec.experts
    if experts is None or not is_mixture(spec, layer):
        return Parameters(attention=attention, norms=norms)
    shared_bias = experts.bias or experts.shared_bias
    shared = mlp(spec, experts.shared_ffn, bias=shared_bias) if experts.num_shared else 0
    return Parameters(
        attention=attention,
        routed_experts=experts.num_experts * mlp(spec, experts.ffn, bias=experts.bias),
        shared_experts=shared + (spec.hidden if experts.shared_gate else 0),
        router=experts.num_experts * (spec.hidden + (1 if experts.router_bias else 0)),
        norms=norms,
    )


def attention_parameters(spec: ModelSpec, layer: int) -> int:
    """What mixes tokens in one layer: attention, a state, both or neither."""
    count = 0
    if attends(spec, layer):
        own = keeps_keys(spec, layer)
        one = with_attention_of(spec, layer)
        count += latent_attention(one) if one.latent else grouped_attention(one, own_keys=own)
    if has_state(spec, layer):
        count += state_parameters(spec)
    return count


def state_parameters(spec: ModelSpec) -> int:
    """The parameters of one layer's state: projections, convolution and the rest."""
    state = spec.state
    assert state is not None
    projected = spec.hidden * (state.inputs + state.width)
    convolved = state.conv_channels * state.conv_width
    return projected + convolved + state.inner_weights + state.other


def grouped_attention(spec: ModelSpec, *, own_keys: bool = True) -> int:
    """Queries, keys, values, output: multi-head, grouped-query or multi-query.

    Without `own_keys`, the layer attends to keys and values of another.
    """
    value_dim = spec.value_dim or spec.head_dim
    queries, outputs = spec.heads * spec.head_dim, spec.heads * value_dim
    keys = spec.kv_heads * spec.head_dim if own_keys else 0
    values = spec.kv_heads * value_dim if own_keys and not spec.values_are_keys else 0
    gates = outputs if spec.attention_gate else 0
    count = spec.hidden * (queries + keys + values + gates + outputs)
    if spec.attention_bias:
        count += queries + keys + values + (gates if spec.gate_bias else 0)
    if spec.output_bias:
        count += spec.hidden
    if spec.qk_norm == "head":
        count += (2 if own_keys else 1) * _norm(spec, spec.head_dim)
    elif spec.qk_norm == "full":
        count += _norm(spec, queries) + (_norm(spec, keys) if own_keys else 0)
    if spec.attention_sinks:
        count += spec.heads
    return count


def latent_attention(spec: ModelSpec) -> int:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    latent = spec.latent
    assert latent is not None
    query_dim = spec.heads * (latent.nope_dim + latent.rope_dim)
    bias = spec.hidden if spec.output_bias else 0
    if latent.q_rank:
        count = spec.hidden * latent.q_rank + latent.q_rank + latent.q_rank * query_dim
        bias += latent.q_rank if spec.attention_bias else 0
    else:
        count = spec.hidden * query_dim
    count += spec.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
    bias += latent.kv_rank + latent.rope_dim if spec.attention_bias else 0
    count += latent.kv_rank * spec.heads * (latent.nope_dim + latent.value_dim)
    count += spec.heads * latent.value_dim * spec.hidden
    return count + bias


def mlp(spec: ModelSpec, width: int, *, bias: bool) -> int:
    """Two projections, or three when a gate multiplies the first."""
    ups = 2 if spec.gated_mlp else 1
    count = (ups + 1) * spec.hidden * width
    return count + ups * width + spec.hidden if bias else count


def embedding_parameters(spec: ModelSpec) -> int:
    """What turns tokens, or patches, into the first hidden state."""
    if spec.kind == "vision":
        patch = spec.image_channels * spec.patch_size**2
        count = spec.hidden * (patch + 1) + spec.hidden  # convolution with bias, class token
    else:
        width = spec.embedding_dim or spec.hidden
        count = spec.vocab * width
        if spec.narrow_embedding:
            count += (width + 1) * spec.hidden
        elif width != spec.hidden:
            count += 2 * width * spec.hidden
    beside = _width_beside_embedding(spec)
    if spec.learned_positions:
        count += (spec.max_positions + spec.position_offset) * beside
    return count + spec.token_types * beside + spec.layer_embeddings


def _width_beside_embedding(spec: ModelSpec) -> int:
    """The width of positions, segments, their norm and the head's own layer."""
    return spec.embedding_dim if spec.narrow_embedding else spec.hidden


def head_parameters(spec: ModelSpec) -> int:
    """What stands behind the final norm, without the rows that a tied head shares."""
    square = spec.hidden * (spec.hidden + 1)
    if spec.head == "none":
        return 0
    if spec.head == "pooler":
        return square
    if spec.head == "classifier":
        return spec.num_classes * (spec.hidden + (1 if spec.head_bias else 0))
    count = 0 if spec.tied_embeddings else spec.vocab * (spec.embedding_dim or spec.hidden)
    count += spec.vocab if spec.head_bias else 0
    if spec.head in ("masked-lm", "pre-training"):
        width = _width_beside_embedding(spec)
        count += width * (spec.hidden + 1) + _norm(spec, width)
    if spec.head == "pre-training":
        count += square + 2 * (spec.hidden + 1)
    return count


def _norm(spec: ModelSpec, width: int) -> int:
    return 2 * width if spec.norm == "layer" and spec.norm_bias else width


def _final_norms(spec: ModelSpec) -> int:
    stacks = 2 if spec.decoder_layers else 1
    return stacks if spec.final_norm else 0


def _embedding_norm(spec: ModelSpec) -> int:
    return _norm(spec, _width_beside_embedding(spec)) if spec.embedding_norm else 0


def _is_first(spec: ModelSpec, layer: int) -> bool:
    """Whether this is the first layer of its stack."""
    return layer in (0, spec.layers)
