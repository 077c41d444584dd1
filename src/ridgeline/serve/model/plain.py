"""A decoder of Llama's shape, built without transformers.

Importing transformers takes longer than everything else in a start that finds its weights packed,
and gives a few modules around them. So the first start, which has the library's model in its hands,
describes it, builds what it described over the same tensors, and compares logits; where they agree,
the next start builds that and leaves the library out. Modules have the names that a Llama's have in
transformers: adapters, the operator for all layers and the file of packed weights find them by
these.

B = 1, T tokens, D numbers of a head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor, nn

from ridgeline.kernels.decoder_layers import LINEARS
from ridgeline.kernels.gated_activation import gelu_tanh_mul, silu_mul
from ridgeline.records.input_file import read_json
from ridgeline.serve.cache import KvShape
from ridgeline.serve.model.attention import Attended, attend
from ridgeline.serve.model.fused import FusedMlp, FusedNorm
from ridgeline.serve.model.llama_like import NormKind, NotInOne, kind_of, llama_like
from ridgeline.serve.weights.linears import PanelEmbedding

STATIC_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies do not follow the length of a sequence."""
_CHECKED_POSITIONS = 512
"""Places, spread over all that a model has, at which cos and sin have to be the library's."""


class PlainShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What such a decoder is beside its weights and its attention's calls."""

    facts: dict[str, Any]
    """config.json as transformers understands it, defaults filled in."""
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    """Outputs of gate and up."""
    gelu: bool
    """gelu's tanh formula; off: silu."""
    biases: tuple[str, ...]
    """Names of linear layers that add one, as in `LINEARS`, and "lm_head"."""
    norm: NormKind
    """The kind of the layers' norms."""
    last_norm: NormKind
    has_head_norms: bool
    """Whether queries and keys are normed in each head."""
    frequencies: tuple[float, ...]
    """Radians per place of each pair of a head's numbers."""
    attention_factor: float
    """What cos and sin are multiplied by."""


class PlainConfig:
    """A model's configuration as a plain table: what it does not have is an AttributeError."""

    def __init__(self, facts: dict[str, Any], name_or_path: str) -> None:
        self._facts = facts
        self.name_or_path = name_or_path

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def get_text_config(self) -> PlainConfig:
        """The same; a model of several kinds of input is never built here."""
        return self


class PlainRotary(nn.Module):
    """cos and sin of fixed frequencies."""

    frequencies: Tensor

    def __init__(self, frequencies: Sequence[float], factor: float) -> None:
        super().__init__()
        made = torch.tensor(frequencies, dtype=torch.float32)
        self.register_buffer("frequencies", made, persistent=False)
        self.factor = factor

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Two of [1, T, D] in x's dtype, for positions [1, T]."""
        half = positions[..., None].float() * self.frequencies
        angles = torch.cat((half, half), dim=-1)
        return (angles.cos() * self.factor).to(x.dtype), (angles.sin() * self.factor).to(x.dtype)


class PlainAttention(nn.Module):
    """Queries, keys and values, turned by their place, over the paged cache."""

    def __init__(self, shape: PlainShape, call: Attended, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_idx = call.layer
        self.call = call
        self.head_size = shape.head_size
        wide, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        sizes = {"q": (shape.hidden, wide), "k": (shape.hidden, narrow)}
        sizes |= {"v": (shape.hidden, narrow), "o": (wide, shape.hidden)}
        for name, (inputs, outputs) in sizes.items():
            setattr(self, f"{name}_proj", _empty_linear(inputs, outputs, name, shape, dtype))
        for name in ("q_norm", "k_norm") if shape.has_head_norms else ():
            setattr(self, name, _empty_norm(shape.norm, shape.head_size, dtype))

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor], others: dict[str, Any]) -> Tensor:
        """[1, T, hidden] to the same."""
        heads = (*x.shape[:-1], -1, self.head_size)
        queries, keys = self.q_proj(x).view(heads), self.k_proj(x).view(heads)
        if hasattr(self, "q_norm"):
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        cos, sin = (one[:, None] for one in turned)
        queries, keys = (_turn(one.transpose(1, 2), cos, sin) for one in (queries, keys))
        out, _ = attend(
            self,
            queries,
            keys,
            self.v_proj(x).view(heads).transpose(1, 2),
            None,
            scaling=self.call.scale,
            sliding_window=self.call.window,
            softcap=self.call.softcap,
            **others,
        )
        attended: Tensor = self.o_proj(out.flatten(2))
        return attended


class PlainLayer(nn.Module):
    """A layer of attention and a gated MLP, each behind a norm and added to its input."""

    def __init__(self, shape: PlainShape, call: Attended, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn = PlainAttention(shape, call, dtype)
        linears = SimpleNamespace(
            gate_proj=_empty_linear(shape.hidden, shape.inner, "gate", shape, dtype),
            up_proj=_empty_linear(shape.hidden, shape.inner, "up", shape, dtype),
            down_proj=_empty_linear(shape.inner, shape.hidden, "down", shape, dtype),
        )
        self.mlp = FusedMlp(linears, gelu_tanh_mul if shape.gelu else silu_mul)
        self.input_layernorm = _empty_norm(shape.norm, shape.hidden, dtype)
        self.post_attention_layernorm = _empty_norm(shape.norm, shape.hidden, dtype)

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor], others: dict[str, Any]) -> Tensor:
        """[1, T, hidden] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), turned, others)
        found: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return found


class PlainStack(nn.Module):
    """All from tokens to what the head reads."""

    def __init__(self, shape: PlainShape, calls: Sequence[Attended], dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(
            shape.vocab, shape.hidden, _weight=_empty(shape.vocab, shape.hidden, dtype=dtype)
        )
        self.layers = nn.ModuleList(PlainLayer(shape, call, dtype) for call in calls)
        self.norm = _empty_norm(shape.last_norm, shape.hidden, dtype)
        self.rotary_emb = PlainRotary(shape.frequencies, shape.attention_factor)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,  # noqa: ARG002 - as models of transformers are called
        **others: Any,
    ) -> SimpleNamespace:
        """The `last_hidden_state` [1, T, hidden] of tokens or embeddings at these positions."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        turned = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, turned, others)
        return SimpleNamespace(last_hidden_state=self.norm(x))


class PlainDecoder(nn.Module):
    """The decoder with its head, called as models of transformers are."""

    def __init__(
        self, shape: PlainShape, calls: Sequence[Attended], dtype: torch.dtype, folder: Path
    ) -> None:
        super().__init__()
        self.config = PlainConfig(shape.facts, str(folder))
        self.generation_config = SimpleNamespace(eos_token_id=_ending_tokens(folder))
        self.dtype = dtype
        self.model = PlainStack(shape, calls, dtype)
        self.lm_head = _empty_linear(shape.hidden, shape.vocab, "lm_head", shape, dtype)

    @property
    def base_model(self) -> nn.Module:
        """The model but for its head."""
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """The head that gives logits."""
        return self.lm_head

    def forward(self, *, logits_to_keep: Tensor, **inputs: Any) -> SimpleNamespace:
        """The `logits` [1, R, V] of the rows that are to be kept."""
        states = self.model(**inputs).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(states[:, logits_to_keep]))


def plain_shape(
    model: Any, shapes: Sequence[KvShape], calls: Sequence[Attended]
) -> PlainShape | None:
    """The description of a model of transformers; None: it is not of this kind.

    Args:
        model: On a CPU, its modules fused, the paged attention switched on.
        shapes: Key-value heads and head size of each layer.
        calls: How each layer calls the attention.
    """
    base: Any = model.base_model
    expected = {"embed_tokens", "layers", "norm", "rotary_emb"}
    around = {name for name, _ in model.named_children()}
    if {name for name, _ in base.named_children()} != expected or around != {"model", "lm_head"}:
        return None
    if type(base.embed_tokens) not in (nn.Embedding, PanelEmbedding):
        return None
    if not isinstance(base.norm, FusedNorm) or getattr(base.embed_tokens, "inner", None):
        return None
    try:
        found = llama_like(model, shapes, calls)
    except NotInOne:
        return None
    named = zip((*LINEARS, "lm_head"), (*found.linears[: len(LINEARS)], model.lm_head), strict=True)
    rotary, about = base.rotary_emb, model.config
    if getattr(rotary, "rope_type", None) not in STATIC_ROTARY:
        return None
    kv_heads, size = shapes[0]
    shape = PlainShape(
        facts=json.loads(about.to_json_string(use_diff=False)),
        vocab=base.embed_tokens.num_embeddings,
        hidden=base.embed_tokens.embedding_dim,
        heads=found.heads,
        kv_heads=kv_heads,
        head_size=size,
        inner=found.inner,
        gelu=found.gelu,
        biases=tuple(name for name, one in named if one.bias is not None),
        norm=found.norm,
        last_norm=kind_of(base.norm),
        has_head_norms=found.head_norms[0] is not None,
        frequencies=tuple(rotary.inv_freq.float().tolist()),
        attention_factor=float(rotary.attention_scaling),
    )
    return shape if _turns_alike(rotary, shape, about) else None


def _turns_alike(rotary: Any, shape: PlainShape, about: Any) -> bool:
    """Whether cos and sin are the library's to the last bit, at places all over a sequence."""
    longest = getattr(about, "max_position_embeddings", None) or _CHECKED_POSITIONS
    places = torch.linspace(0, longest - 1, min(longest, _CHECKED_POSITIONS)).long()[None]
    x = torch.zeros(1, 1, shape.hidden)
    mine, its = PlainRotary(shape.frequencies, shape.attention_factor)(x, places), rotary(x, places)
    return all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


def _ending_tokens(folder: Path) -> Any:
    """What generation_config.json says ends an answer; None: it does not say."""
    path = folder / "generation_config.json"
    return read_json(path, dict[str, Any]).get("eos_token_id") if path.exists() else None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[1, H, T, D] turned; pairs are the two halves of a head."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _empty_norm(kind: NormKind, size: int, dtype: torch.dtype) -> FusedNorm:
    weight = nn.Parameter(_empty(size, dtype=dtype), requires_grad=False)
    return FusedNorm(weight, kind.eps, kind.offset, round_first=kind.round_first)


def _empty_linear(
    inputs: int, outputs: int, name: str, shape: PlainShape, dtype: torch.dtype
) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=name in shape.biases, dtype=dtype, device="meta")


def _empty(*sizes: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(*sizes, dtype=dtype, device="meta")
