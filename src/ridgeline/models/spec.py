"""What a transformer is, as numbers: enough to count every parameter, FLOP and byte of it.

One flat record for dense, grouped-query, mixture-of-experts and latent-attention models, and for
those whose layers keep a state in place of keys and values. Shapes are in elements. Networks for
images are lists of operators: `vision/`.
"""

from __future__ import annotations

import functools
from typing import Literal

import msgspec


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mixture-of-experts MLP, in every layer but the first `dense_layers`."""

    num_experts: int
    top_k: int
    ffn: int
    """Hidden width of one routed expert."""
    num_shared: int = 0
    """Shared experts that every token passes (0: none)."""
    shared_ffn: int = 0
    """Hidden width of all shared experts together."""
    shared_gate: bool = False
    """Whether a learned gate scales the shared experts' output (Qwen2-MoE)."""
    dense_layers: int = 0
    """Leading layers with the dense MLP of width `ModelSpec.ffn` (DeepSeek)."""
    every: int = 1
    """The number of layers of which one is a mixture, the last of each group; the others are dense
    (`decoder_sparse_step` of Qwen-MoE)."""
    bias: bool = False
    """Whether expert projections have biases (GPT-OSS)."""
    shared_bias: bool = False
    """Whether those of shared experts have, whatever the routed ones have (ERNIE 4.5)."""
    router_bias: bool = False


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kv_rank: int
    q_rank: int
    """Rank of the compressed query; 0: queries are not compressed."""
    nope_dim: int
    """Width of a head's query and key that carries no position."""
    rope_dim: int
    """Width of the rotary part; its key is shared by all heads."""
    value_dim: int


Rule = Literal["delta-rule", "state-space", "selective-scan", "linear-attention", "convolution"]


class StateMixer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What mixes tokens through a state of fixed size, where attention would keep every token.

    A head's state is a matrix of `key_dim` x `value_dim` that each token changes: by the gated
    delta rule (arXiv 2412.06464), as a state space (Mamba 2, 2405.21060), by a selective scan of
    channels (Mamba, 2312.00752), or as linear attention with decay (2405.17381). A short
    convolution (LFM2) keeps its last inputs alone.
    """

    rule: Rule
    heads: int
    """Heads of the state; of a selective scan and of a convolution, the channels."""
    key_heads: int
    """Heads of keys, which groups of state heads share; of a selective scan 1."""
    key_dim: int
    """Rows of a head's state; 0 where there is none."""
    value_dim: int
    """Columns of a head's state."""
    inputs: int
    """Width of all projections of the layer's input."""
    conv_width: int = 0
    """Tokens that the convolution before the state sees; 0: there is none."""
    conv_channels: int = 0
    steps_rank: int = 0
    """Rank through which a selective scan chooses its steps, beside its rows' two vectors; 0: steps
    are among `inputs`."""
    other: int = 0
    """Parameters of one layer beyond all projections and the convolution's weights."""

    @property
    def width(self) -> int:
        """What the output projection reads."""
        return self.heads * self.value_dim

    @property
    def inner_weights(self) -> int:
        """Weights of the projections to a selective scan's steps and vectors, and back to steps."""
        if not self.steps_rank:
            return 0
        return self.width * (2 * self.steps_rank + 2 * self.key_dim)


class Indexer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chooser of the tokens that attention reads (DeepSeek-V3.2, arXiv 2512.02556)."""

    heads: int
    dim: int
    """Width of its query and key."""
    top_k: int
    """Tokens that a query attends to."""
    skipped_layers: int = 0
    """Layers that take the choice of the layer before them."""


class WindowedAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of attention in windowed layers, where the other layers have other ones (Gemma 4)."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    """Width of one head's value where it is not `head_dim`; 0: it is."""
    sinks: bool = False
    """Whether a learned logit of each head takes weight from all tokens."""


class LayerKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer's parts, where not all layers have attention and an MLP."""

    attention: bool = False
    state: bool = False
    mlp: Literal["", "usual", "dense", "experts"] = "usual"
    """Which MLP it has: none, what `Experts` says of the layer, or one of the two."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of a transformer. Encoder-decoders count their decoder in `decoder_layers`."""

    name: str
    """The name that the user or the preset gives it."""
    family: str
    """The HF `model_type` (`llama`, `gpt2`, …) or `generic`."""
    kind: Literal["decoder", "encoder", "encoder-decoder", "vision"] = "decoder"
    layers: int
    """Layers of the only stack; of an encoder-decoder, of the encoder."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    kv_heads: int
    head_dim: int
    """Width of one head's query; of its key and value too, but for latent attention."""
    value_dim: int = 0
    """Width of one head's value where it is not `head_dim` (MiMo-V2); 0: it is."""
    ffn: int
    """Hidden width of the dense MLP; for a gated MLP, of each of the two up projections."""
    gated_mlp: bool
    vocab: int
    """Rows of the embedding as stored (padding included); 0 for images."""
    max_positions: int = 0
    """Longest sequence that the configuration names; 0: none."""
    learned_positions: bool = False
    """Whether each of the `max_positions` positions has an embedding of its own."""
    position_offset: int = 0
    """Unused rows in front of the position embeddings (OPT: 2)."""
    token_types: int = 0
    """Rows of the segment embedding (BERT)."""
    embedding_dim: int = 0
    """Width of the stored embedding where projections lead to and from `hidden` (OPT-350m);
    0: `hidden`."""
    narrow_embedding: bool = False
    """Whether positions, segments, their norm and the head's layer have that width, too
    (ELECTRA)."""
    layer_embeddings: int = 0
    """Elements of a table with a small vector of each token for each layer (Gemma 3n)."""
    embedding_norm: bool = False
    """Whether the embeddings are normalised before the first layer (BLOOM, BERT)."""
    tied_embeddings: bool = False
    """Whether the head multiplies with the embedding's own rows."""
    head: Literal["lm", "masked-lm", "pre-training", "classifier", "pooler", "none"] = "lm"
    """What stands behind the last layer. `masked-lm`: BERT's transform, norm and biased decoder;
    `pre-training`: that, the pooler and next-sentence prediction; `classifier`: one linear layer
    to `num_classes`; `pooler`: one square linear layer (with its bias)."""
    head_bias: bool = False
    num_classes: int = 0
    """Outputs of a classifier head."""
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    """Whether a LayerNorm has a bias (MPT: no); an RMS norm never has."""
    norms_per_layer: int = 2
    final_norm: bool = True
    """Whether there is a norm behind the last layer (post-norm models: no)."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norms on queries and keys: one `head_dim` vector for all heads, or one per channel."""
    attention_bias: bool = False
    """Biases on q, k, v."""
    output_bias: bool = False
    """Bias on the attention's output projection."""
    attention_sinks: bool = False
    """One learned logit per head that takes weight from all tokens (GPT-OSS)."""
    relative_buckets: int = 0
    """Buckets of the learned relative position bias, stored in each stack's first layer (T5)."""
    mlp_bias: bool = False
    parallel_block: bool = False
    """Attention and MLP read the same input (GPT-NeoX, Falcon, Phi)."""
    sliding_window: int = 0
    """Tokens that a windowed layer sees; 0: all layers see everything."""
    full_attention_every: int = 1
    """With a sliding window: one layer in this many has full attention (0: none has)."""
    windowed: tuple[bool, ...] = ()
    """With a sliding window: which layers have it, where no period says so; empty: it does."""
    windowed_attention: WindowedAttention | None = None
    """Attention of the windowed layers, where it has other sizes than that of the others."""
    values_are_keys: bool = False
    """Whether layers without a window take their keys for values, which are then not projected
    (Gemma 4 31B); both are kept."""
    key_sharing_layers: int = 0
    """Last layers that attend to keys and values of layers before them and keep none (Gemma 3n)."""
    decoder_layers: int = 0
    """Layers of the decoder of an encoder-decoder; each also attends to the encoder."""
    image_size: int = 0
    """Pixels along one side (vision)."""
    patch_size: int = 0
    image_channels: int = 3
    experts: Experts | None = None
    latent: LatentAttention | None = None
    attention_gate: bool = False
    """Whether attention's output is multiplied by a gate of the same width (Qwen3-Next)."""
    gate_bias: bool = True
    """Whether that gate's projection has a bias where the queries' has."""
    indexer: Indexer | None = None
    state: StateMixer | None = None
    kinds: tuple[LayerKind, ...] = ()
    """Each layer's parts; empty: all have attention and an MLP."""
    extra: dict[str, int] = {}
    """Parameters of family-specific tensors that no field above describes, by tensor name."""

    @property
    def is_causal_language_model(self) -> bool:
        """Whether it predicts the next token: what generates, and what `ridgeline train` trains."""
        return self.kind == "decoder" and self.head == "lm"


USUAL = LayerKind(attention=True)
"""Attention and an MLP."""


def kind_of(spec: ModelSpec, layer: int) -> LayerKind:
    """The parts of one layer."""
    return spec.kinds[layer] if spec.kinds else USUAL


def attends(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer keeps keys and values of every token."""
    return kind_of(spec, layer).attention


def has_state(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer keeps a state of fixed size."""
    return kind_of(spec, layer).state


def is_mixture(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's MLP is a mixture of experts."""
    return is_routed(spec.experts, kind_of(spec, layer), layer)


def is_dense(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's MLP is a plain one."""
    return bool(kind_of(spec, layer).mlp) and not is_mixture(spec, layer)


def is_routed(experts: Experts | None, kind: LayerKind, layer: int) -> bool:
    """Whether a layer of this kind has such experts."""
    if experts is None or kind.mlp in ("", "dense"):
        return False
    if kind.mlp == "experts":
        return True
    return layer >= experts.dense_layers and (layer + 1) % experts.every == 0


def is_windowed(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer's attention sees a window only; of each group the last sees all."""
    if not spec.sliding_window or not attends(spec, layer):
        return False
    if spec.windowed:
        return spec.windowed[layer]
    every = spec.full_attention_every
    return every == 0 or (layer + 1) % every != 0


def keeps_keys(spec: ModelSpec, layer: int) -> bool:
    """Whether this layer has keys and values of its own, and does not attend to another's."""
    return attends(spec, layer) and layer < num_layers(spec) - spec.key_sharing_layers


def with_attention_of(spec: ModelSpec, layer: int) -> ModelSpec:
    """The model, its attention that of this layer.

    >>> from ridgeline.models.presets import preset
    >>> with_attention_of(preset("Llama-3-8B"), 0).heads
    32
    """
    return as_windowed(spec) if is_windowed(spec, layer) else spec


def as_windowed(spec: ModelSpec) -> ModelSpec:
    """The model, its attention that of its windowed layers."""
    shape = spec.windowed_attention
    if shape is None and not spec.values_are_keys:
        return spec
    sizes = {} if shape is None else msgspec.structs.asdict(shape)
    if "sinks" in sizes:
        sizes["attention_sinks"] = sizes.pop("sinks")
    return msgspec.structs.replace(spec, values_are_keys=False, **sizes)


def num_layers(spec: ModelSpec) -> int:
    """Layers of both stacks."""
    return spec.layers + spec.decoder_layers


@functools.lru_cache(maxsize=512)
def _counted(kinds: tuple[LayerKind, ...], layers: int) -> tuple[int, int]:
    if not kinds:
        return layers, 0
    return sum(one.attention for one in kinds), sum(one.state for one in kinds)


def num_attention_layers(spec: ModelSpec) -> int:
    """The number of layers with attention.

    >>> from ridgeline.models.presets import preset
    >>> spec = preset("Qwen3-Next-80B-A3B")
    >>> num_attention_layers(spec), num_state_layers(spec)
    (12, 36)
    """
    return _counted(spec.kinds, num_layers(spec))[0]


def num_state_layers(spec: ModelSpec) -> int:
    """The number of layers with a state."""
    return _counted(spec.kinds, num_layers(spec))[1]


def num_parts(spec: ModelSpec) -> int:
    """Blocks that add to the residual stream, over all layers: two of a usual layer."""
    if not spec.kinds:
        return 2 * num_layers(spec)
    return sum((one.attention or one.state) + bool(one.mlp) for one in spec.kinds)
