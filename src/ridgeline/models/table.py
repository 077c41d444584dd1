"""Models out of rows of published benchmark tables, where half of the architecture is unsaid.

A row names a model and gives some of `params_b`, `layers`, `hidden`, `ffn`, `heads`, `kv_heads`,
`head_dim`, `vocab`, `experts`, `topk`, `seq`, and words in `note`. Tables leave out whether the MLP
is gated, the head tied, positions learned. The rule, in this order and never by looking at a
measured speed:

1. A preset of that name whose sizes agree with every size that the row gives is the model; the
   row's vocabulary (often padded) replaces the preset's. Where `params_b` is given, the preset must
   count to it (rounded or cut off at its last printed digit), unless nothing under 2 does either.
2. Otherwise every combination of {two, three MLP projections} x {tied, untied} x {GPT: LayerNorm,
   biases, learned positions; MPT: learned positions alone; Llama: neither} is counted. With
   `params_b`, those that print as it stay; if none does, those nearest to it by whole hundredths.
3. Of what stays, first what the note's words say (SwiGLU, GELU, squared ReLU, tied, learned
   positions), then what is usual: a width of exactly 4 x hidden means two projections, these mean
   GPT's lineage and a tied head; other widths and mixtures mean Llama's.
4. Heads that a row leaves blank: the divisor of the hidden size that makes a head's width nearest
   to 128. Latent attention (MLA in the note) has DeepSeek's widths, with or without compressed
   queries, whichever meets `params_b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.models.counts import parameter_count
from ridgeline.models.keys import LARGEST
from ridgeline.models.presets import known_presets, preset_spec
from ridgeline.models.spec import Experts, LatentAttention, ModelSpec

LINEAGES: dict[str, dict[str, Any]] = {
    "gpt": {"norm": "layer", "attention_bias": True, "output_bias": True, "mlp_bias": True},
    "mpt": {"norm": "layer", "norm_bias": False},
    "llama": {"norm": "rms"},
}
LATENTS = tuple(
    LatentAttention(kv_rank=512, q_rank=q_rank, nope_dim=128, rope_dim=64, value_dim=128)
    for q_rank in (1536, 0)
)
"""DeepSeek-V2 (arXiv 2405.04434, section 3.1.2) and its Lite (appendix B); V3, Moonlight and Kimi
K2 kept these."""
USUAL_HEAD_DIM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TableModel:
    """The model of one row, and how sure that is."""

    spec: ModelSpec
    matches: bool | None
    """Whether its count prints as `params_b`; None where the row gives none."""
    assumed: tuple[str, ...]
    """What the row does not say, one clause each."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells that describe the model."""

    cells: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name that the table gives it."""
        return self.cells.get("model", "").strip() or "model"

    @property
    def note(self) -> str:
        """Free words and `key=value` tags."""
        return self.cells.get("note", "")

    def number(self, column: str) -> int | None:
        """A whole number of 1 or more; None for a blank or absent cell."""
        text = self.cells.get(column, "").strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 1 <= value <= LARGEST or value != int(value):
            raise InputError(
                f"{self.name}: {column} is {text!r}; it must be a whole number of 1 or more"
            )
        return int(value)

    def needed(self, column: str) -> int:
        """The same, of a cell that nothing can stand in for."""
        value = self.number(column)
        if value is None:
            raise InputError(
                f"{self.name}: {column} is blank and no preset has this name; fill it in"
            )
        return value

    def published(self) -> tuple[float, float] | None:
        """Parameters and one unit of the last printed digit; None when not given."""
        text = self.cells.get("params_b", "").strip()
        if not text:
            return None
        try:
            billions = float(text)
        except ValueError:
            billions = 0.0
        if not 0 < billions <= LARGEST:
            raise InputError(f"{self.name}: params_b is {text!r}; it must be a number of billions")
        digits = len(text.partition(".")[2])
        return 1e9 * billions, 1e9 * 10.0**-digits

    def tag(self, pattern: str) -> int | None:
        """The number that this pattern finds in the note."""
        found = re.search(pattern, self.note, re.IGNORECASE)
        return int(found.group(1)) if found else None

    def says(self, pattern: str) -> bool:
        """Whether the note has these words."""
        return re.search(pattern, self.note, re.IGNORECASE) is not None


def spec_from_table(cells: Mapping[str, str]) -> ModelSpec:
    """The model of one row; see `read_table_model` for how sure that is.

    >>> row = {"model": "GPT2-1B", "layers": "24", "hidden": "1920", "heads": "15",
    ...        "vocab": "51200", "params_b": "1.16", "seq": "1024"}
    >>> spec_from_table(row).gated_mlp
    False
    """
    return read_table_model(cells).spec


def read_table_model(cells: Mapping[str, str]) -> TableModel:
    """The model of one row, whether its size agrees, and what was assumed."""
    row = Row(cells)
    published = row.published()
    known = _preset(row)
    if known is not None and _within(known, published) is not False:
        return TableModel(spec=known, matches=_within(known, published), assumed=())
    if known is not None and known.experts is not None:
        # Experts, shared experts and latent attention are more than a table's columns can say.
        return TableModel(spec=known, matches=False, assumed=())
    sizes, assumed = _sizes(row)
    fitting = [one for one in _candidates(row, sizes) if _within(one, published)]
    if fitting:
        best = min(fitting, key=lambda one: _oddity(row, one))
        return TableModel(spec=best, matches=True, assumed=(*assumed, *_choices(best)))
    if known is not None:
        return TableModel(spec=known, matches=False, assumed=())
    best = min(_candidates(row, sizes), key=lambda one: (_miss(one, published), _oddity(row, one)))
    matches = None if published is None else False
    return TableModel(spec=best, matches=matches, assumed=(*assumed, *_choices(best)))


def _preset(row: Row) -> ModelSpec | None:
    """The preset of this name, if it has every size that the row gives."""
    canonical = known_presets().names.shape_of(row.name)
    if canonical is None:
        return None
    spec = preset_spec(_revision(row, canonical))
    experts = spec.experts
    widths = {spec.ffn, experts.ffn if experts else spec.ffn}
    has = {
        "layers": {spec.layers},
        "hidden": {spec.hidden},
        "heads": {spec.heads},
        "kv_heads": {spec.kv_heads},
        "ffn": widths,
        "experts": {experts.num_experts if experts else 1},
        "topk": {experts.top_k if experts else 1},
    }
    # Keys and values of latent attention are stored once; tables print 1 or all heads.
    if spec.latent is not None:
        has["kv_heads"].add(1)
    for column, allowed in has.items():
        value = row.number(column)
        if value is not None and value not in allowed:
            return None
    return msgspec.structs.replace(spec, vocab=row.number("vocab") or spec.vocab)


def _revision(row: Row, canonical: str) -> str:
    """The revision of a model that a row without one means, by its vocabulary.

    `Mistral-7B` of 32,768 words is v0.3, which has no window; of 32,000 it is v0.1.
    """
    stem, mark, _ = canonical.rpartition("-v")
    vocab = row.number("vocab")
    if not mark or vocab is None or re.search(r"v\d", row.name, re.IGNORECASE):
        return canonical
    presets = known_presets().presets
    others = (name for name in presets if name.startswith(f"{stem}-v"))
    candidates = [canonical, *others]
    return next((one for one in candidates if preset_spec(one).vocab == vocab), canonical)


def _sizes(row: Row) -> tuple[dict[str, Any], list[str]]:
    """Fields that all candidates share, and what had to be assumed for them."""
    assumed = []
    hidden = row.needed("hidden")
    heads = row.number("heads")
    if heads is None:
        heads = _usual_heads(hidden)
        assumed.append(f"{heads} heads, of width {hidden // heads}")
    head_dim = row.number("head_dim") or row.tag(r"head_dim[ =](\d+)")
    if head_dim is None and hidden % heads:
        raise InputError(f"{row.name}: {heads} heads do not divide the hidden size {hidden}")
    kv_heads = row.number("kv_heads") or heads
    if heads % kv_heads:
        raise InputError(f"{row.name}: {kv_heads} kv_heads do not divide {heads} heads")
    ffn = row.number("ffn")
    if ffn is None:
        ffn = 4 * hidden
        assumed.append("an MLP of four times the hidden size")
    if row.says(r"\bMLA\b"):
        assumed.append("latent attention with DeepSeek's widths")
    window = row.tag(r"sliding-window (\d+)") or 0
    sizes = {
        "name": row.name,
        "family": "generic",
        "layers": row.needed("layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "ffn": ffn,
        "vocab": row.needed("vocab"),
        "sliding_window": window,
        "full_attention_every": 2 if window else 1,
        "experts": _experts(row, ffn),
    }
    return sizes, assumed


def _experts(row: Row, ffn: int) -> Experts | None:
    num_experts = row.number("experts") or 1
    if num_experts == 1:
        return None
    top_k = row.needed("topk")
    if top_k > num_experts:
        raise InputError(f"{row.name}: topk is {top_k}; there are only {num_experts} experts")
    width = row.tag(r"moe_ffn=(\d+)") or ffn
    shared = row.tag(r"(\d+) shared expert") or 0
    return Experts(
        num_experts=num_experts,
        top_k=top_k,
        ffn=width,
        num_shared=shared,
        shared_ffn=shared * width,
        dense_layers=row.tag(r"(\d+) dense \+") or 0,
        every=_every(row),
    )


def _every(row: Row) -> int:
    """The number of layers of which one is a mixture, in the note's words."""
    if row.says(r"(every|each) (other|second|2nd) layer"):
        return 2
    return row.tag(r"moe_layer_freq[ =](\d+)") or row.tag(r"every (\d+)(?:th|rd|nd)? layers?") or 1


def _usual_heads(hidden: int) -> int:
    """The divisor that makes a head nearest to 128 wide; of two as near, the wider head."""
    widths = [width for width in range(1, hidden + 1) if hidden % width == 0]
    return hidden // min(widths, key=lambda width: (abs(width - USUAL_HEAD_DIM), -width))


def _candidates(row: Row, sizes: dict[str, Any]) -> Iterator[ModelSpec]:
    positions = row.number("seq") or 0
    latents = LATENTS if row.says(r"\bMLA\b") else (None,)
    both = (False, True)
    for gated, tied, lineage, latent in product(both, both, LINEAGES, latents):
        yield ModelSpec(
            **sizes,
            **LINEAGES[lineage],
            gated_mlp=gated,
            tied_embeddings=tied,
            learned_positions=lineage != "llama" and positions > 0,
            max_positions=positions,
            latent=latent,
        )


def _oddity(row: Row, spec: ModelSpec) -> tuple[int, int]:
    """How many of the note's words a candidate contradicts, then how far it is from usual."""
    contradictions = 0
    if row.says(r"swiglu|geglu"):
        contradictions += not spec.gated_mlp
    elif row.says(r"gelu|squared-relu|2 matmuls"):
        contradictions += spec.gated_mlp
    if row.says(r"\btied emb"):
        contradictions += not spec.tied_embeddings
    if row.says(r"learned pos"):
        contradictions += not spec.learned_positions
    gated = spec.experts is not None or spec.ffn != 4 * spec.hidden
    biased = spec.mlp_bias
    unusual = 4 * (spec.gated_mlp != gated)
    unusual += 2 * (spec.tied_embeddings == spec.gated_mlp)
    unusual += biased == spec.gated_mlp
    return contradictions, 2 * unusual + (spec.learned_positions and not biased)


def _within(spec: ModelSpec, published: tuple[float, float] | None) -> bool | None:
    """Whether the count prints as `params_b`, rounded or cut off; None where there is none."""
    if published is None:
        return None
    target, unit = published
    return -0.5 * unit <= parameter_count(spec) - target < unit


def _miss(spec: ModelSpec, published: tuple[float, float] | None) -> int:
    """Distance from `params_b` in whole hundredths of it: less is no evidence once none fits."""
    if published is None:
        return 0
    return int(100 * abs(parameter_count(spec) / published[0] - 1))


def _choices(spec: ModelSpec) -> list[str]:
    """What was chosen, in words."""
    biases = "biases" if spec.mlp_bias else "no biases"
    return [
        "a gated MLP" if spec.gated_mlp else "an MLP of two projections",
        "a tied head" if spec.tied_embeddings else "an untied head",
        f"{biases}, {'learned' if spec.learned_positions else 'no learned'} positions",
    ]
