"""A Hugging Face causal language model cut into pipeline stages.

A stage is the model itself without the other stages' layers, so that names of parameters (and with
them checkpoints and name-seeded weights) are the same in every layout. What is left out leaves
something that passes its input on: the list of layers keeps its length and its indices, and
whatever the family's own forward reads by index (`config.layer_types`, `layer_idx`) stays right.

    first stage      embedding, position embedding, its layers
    middle           its layers; the hidden state comes in as `inputs_embeds`
    last             its layers, final norm, head

What a family's forward does around its layers beyond that differs. Instead of a list of families
that work, `check_family` builds a tiny model of the same family, cuts it, and compares: a family
whose stages do not make up the whole is refused.

A head that shares the embedding's matrix needs it on the first and on the last stage. The last
stage then keeps the embedding module too (it never runs), so that both copies have one name; their
gradients are added in `pipeline.py` (Shoeybi et al., arXiv 1909.08053; Narayanan et al.,
arXiv 2104.04473, section 4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.models.config import spec_from_config
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.train.parallel.balance import end_flops, layer_flops, split_layers
from ridgeline.train.parallel.layer_times import measured_times
from ridgeline.train.ranks import Ranks

_ROUNDING = 1e-5
NUM_LAYERS = 4
_WIDTHS = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "n_inner": 64,
    "word_embed_proj_dim": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "rotary_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Which part of the model a stage is; an attribute `stage_place` of each stage."""

    index: int
    count: int
    layers: range
    tied: str
    """Name of the matrix that embedding and head share; empty: they do not, or there is but one
    stage. The first and the last stage have a copy each."""

    @property
    def is_first(self) -> bool:
        """Whether the stage begins with tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage ends with logits."""
        return self.index == self.count - 1

    @property
    def repeats(self) -> str:
        """Name of the parameter that another stage has as well; count it there (norms, sums)."""
        return self.tied if self.is_last else ""


class Elsewhere(nn.Module):
    """Stands for a layer that another stage has: hands its first argument on."""

    def __init__(self, *, in_tuple: bool = False) -> None:
        super().__init__()
        self._in_tuple = in_tuple

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor | tuple[Tensor]:
        """The input, alone or as the first of a tuple."""
        return (hidden,) if self._in_tuple else hidden


class NoPositions(nn.Module):
    """Stands for position embeddings that the first stage has added already."""

    def forward(self, positions: Tensor, *_: Any, **__: Any) -> Tensor:
        """Zeros that broadcast over the hidden state; integers, so that its precision stays."""
        return positions.new_zeros((*positions.shape, 1), dtype=torch.int64)


def cut(model: PreTrainedModel, recipe: Recipe, ranks: Ranks) -> list[nn.Module]:
    """This rank's stages of an empty model, in the order of the schedule's chunks.

    Raises:
        InputError: There are too few layers, or the family cannot be cut.
    """
    layout = recipe.layout
    count = layout.pp * layout.vpp
    around = check_family(model, count)
    splits = balanced(model.config, recipe, count)
    if recipe.run.balance == "measured":
        splits = _timed(model, recipe, ranks, count, around)
    mine = stages_of_rank(layout, ranks.index("pp"))
    return [take_stage(copy.deepcopy(model), splits, index, around) for index in mine]


def stages_of_rank(layout: Layout, rank: int) -> list[int]:
    """Stages that one pipeline rank holds: looped, or as a V with two chunks and zero bubble.

    >>> stages_of_rank(Layout(pp=2, vpp=2, schedule="interleaved"), 1)
    [1, 3]
    >>> stages_of_rank(Layout(pp=2, vpp=2, schedule="zero-bubble"), 0)
    [0, 3]
    """
    count = layout.pp * layout.vpp
    if is_v_shaped(layout):
        return [rank, count - 1 - rank]
    return list(range(rank, count, layout.pp))


def is_v_shaped(layout: Layout) -> bool:
    """Whether the chunks go down the ranks and come back (ZBV: Qi et al., arXiv 2405.15362)."""
    return layout.schedule == "zero-bubble" and layout.vpp == 2


def rank_of_stage(layout: Layout, stage: int) -> int:
    """Which pipeline rank holds a stage."""
    looped = stage % layout.pp
    return layout.pp - 1 - looped if is_v_shaped(layout) and stage >= layout.pp else looped


def balanced(config: PretrainedConfig, recipe: Recipe, count: int) -> list[range]:
    """The layers of each stage, by FLOPs."""
    spec = spec_from_config(config.to_dict(), place=recipe.model.config, name=recipe.model.config)
    seq = recipe.text.seq
    before, behind = end_flops(spec, seq)
    costs = layer_flops(spec, seq, recipe.layout.recompute)
    return split_layers(costs, count, before=before, behind=behind)


def _timed(
    model: PreTrainedModel, recipe: Recipe, ranks: Ranks, count: int, around: StageSurroundings
) -> list[range]:
    """The layers of each stage, by what they take on this device."""
    holder, name = _layers_of(model)
    times = measured_times(
        model,
        getattr(holder, name),
        lambda whole, splits, index: take_stage(whole, splits, index, around),
        recipe,
        ranks,
    )
    return split_layers(times.layers, count, before=times.before, behind=times.behind)


def take_stage(
    model: PreTrainedModel, splits: list[range], index: int, around: StageSurroundings
) -> PreTrainedModel:
    """Take everything out of the model that is not in this stage; its forward becomes the stage's.

    The stage's forward takes token ids or a hidden state, and keyword arguments for every layer
    (`position_ids`); it returns a hidden state or logits.
    """
    holder, name = _layers_of(model)
    layers: nn.ModuleList = getattr(holder, name)
    if len(layers) != splits[-1].stop:
        raise InputError(
            f"{type(model).__name__}: {len(layers)} layers where its config says {splits[-1].stop};"
            " a pipeline cannot cut it; use layout.pp = 1"
        )
    tied = _tied_name(model) if len(splits) > 1 else ""
    embedding = model.get_input_embeddings()
    place = StagePlace(index=index, count=len(splits), layers=splits[index], tied=tied)
    for layer in range(len(layers)):
        if layer not in place.layers:
            layers[layer] = Elsewhere(in_tuple=around.in_tuple)
    if not place.is_first:
        for one in around.before:
            module = getattr(holder, one)
            if module is embedding:
                if not (place.is_last and tied):
                    setattr(holder, one, Elsewhere())
            else:
                setattr(holder, one, _standing_for(module))
    if not place.is_last:
        for one in around.behind:
            setattr(holder, one, Elsewhere())
        model.set_output_embeddings(Elsewhere())
    model.stage_place = place
    model.forward = MethodType(_stage_forward, model)
    return model


def _stage_forward(model: PreTrainedModel, state: Tensor, **kwargs: Any) -> Tensor:
    """The forward pass of a stage: token ids or hidden state in, hidden state or logits out."""
    place: StagePlace = model.stage_place
    given = {"input_ids" if place.is_first else "inputs_embeds": state, "use_cache": False}
    if place.is_last:
        return type(model).forward(model, **given, **kwargs).logits
    return model.base_model(**given, **kwargs).last_hidden_state


def _layers_of(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that has the list of layers, and the list's name."""
    count = model.config.num_hidden_layers
    for holder in model.modules():
        for name, child in holder.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return holder, name
    raise InputError(
        f"{type(model).__name__}: no list of {count} layers in it; a pipeline cannot cut it; use"
        " layout.pp = 1"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSurroundings:
    """Children of the module with the layers that work before them, and behind them, by name."""

    before: tuple[str, ...]
    behind: tuple[str, ...]
    in_tuple: bool
    """Whether a layer returns its hidden state as the first of a tuple."""


def _watch(model: PreTrainedModel, run: Callable[[], Tensor]) -> tuple[Tensor, StageSurroundings]:
    """Run a model and see which children of the layers' holder come before and behind the layers.

    Those that hold nothing and that every layer needs (rotary embeddings) are left out.
    """
    holder, layers = _layers_of(model)
    called: list[str] = []
    children = [(name, one) for name, one in holder.named_children() if _is_work(one)]
    watched = [*children, (layers, getattr(holder, layers)[0])]
    handles = [
        one.register_forward_pre_hook(lambda *_, name=name: called.append(name))
        for name, one in watched
        if one is not getattr(holder, layers)
    ]
    outputs: list[Any] = []
    first = getattr(holder, layers)[0]
    handles.append(first.register_forward_hook(lambda *given: outputs.append(given[2])))
    result = run()
    for handle in handles:
        handle.remove()
    place = called.index(layers)
    never = tuple(name for name, _ in children if name not in called and name != layers)
    before = tuple(dict.fromkeys(called[:place]))
    return result, StageSurroundings(
        before=before + never,
        behind=tuple(called[place + 1 :]),
        in_tuple=isinstance(outputs[0], tuple),
    )


def _is_work(module: nn.Module) -> bool:
    return isinstance(module, nn.Dropout) or any(True for _ in module.parameters())


def _standing_for(module: nn.Module) -> nn.Module:
    return NoPositions() if isinstance(module, nn.Embedding) else Elsewhere()


def _tied_name(model: PreTrainedModel) -> str:
    """Name of the matrix that embedding and head share, if they do."""
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    if head is None or embedding is None or head.weight is not embedding.weight:
        return ""
    return next(name for name, one in model.named_parameters() if one is embedding.weight)


def check_family(model: PreTrainedModel, count: int) -> StageSurroundings:
    """Compare the chained stages of a tiny model of this family with the whole.

    Returns:
        What stands around the layers, as the tiny model's forward was seen to use it.

    Raises:
        InputError: They differ, or one cannot be built.
    """
    family = type(model).__name__
    try:
        error, around = _stage_error(type(model), tiny_config(model.config), min(count, 3))
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as failure:
        raise InputError(
            f"{family}: a pipeline cannot cut it ({type(failure).__name__}: {failure}); use"
            " layout.pp = 1"
        ) from failure
    if error > _ROUNDING:
        raise InputError(
            f"{family}: cut into stages it computes something else (relative error {error:.1g}),"
            " because its layers share more than the hidden state; use layout.pp = 1"
        )
    return around


def _stage_error(
    family: type[PreTrainedModel], config: PretrainedConfig, count: int
) -> tuple[float, StageSurroundings]:
    """Largest difference between chained stages and the whole, relative to the largest logit."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        whole = family(config).float().eval()
        for parameter in whole.parameters():
            # Norms of one and biases of nought would hide that they are applied twice.
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        splits = split_layers([1.0] * config.num_hidden_layers, count)
        state = torch.randint(config.vocab_size, (2, 12))
        positions = torch.arange(12).expand(2, -1)
        tokens = {"input_ids": state, "position_ids": positions, "use_cache": False}
        expected, around = _watch(whole, lambda: whole(**tokens).logits)
        for index in range(count):
            stage = take_stage(copy.deepcopy(whole), splits, index, around)
            state = stage(state, position_ids=positions)
    return float((state - expected).abs().max() / expected.abs().max()), around


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of the config with every width and count cut down; all else is as it was.

    What a family's forward does is the same at every width, so a tiny one shows it in milliseconds.
    """
    small = copy.deepcopy(config)
    layers = config.num_hidden_layers
    # Properties that follow from other sizes (Falcon's head_dim) cannot be set, and need not be.
    settable = {
        name for name in _WIDTHS if not isinstance(getattr(type(config), name, None), property)
    }
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == layers:
            # Kinds of layers by index, over again where there are fewer layers than in the copy.
            setattr(small, name, [value[index % layers] for index in range(NUM_LAYERS)])
    for name, width in _WIDTHS.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0 and name in settable:
            setattr(small, name, min(value, width))
    if hasattr(config, "qk_rope_head_dim"):
        small.head_dim = small.qk_rope_head_dim
    heads = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int):
        grouped = heads < config.num_attention_heads
        small.num_key_value_heads = min(heads, 2) if grouped else small.num_attention_heads
    small.num_hidden_layers = NUM_LAYERS
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    rope = getattr(config, "rope_parameters", None)
    if rope and any(isinstance(value, list) for value in rope.values()):
        # Factors per frequency: as many as half a head. All stages rotate alike whatever they are.
        small.rope_parameters = _plain_rotation(rope)
    small._attn_implementation = "eager"
    return small


def _plain_rotation(rope: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in rope.items() if not isinstance(value, list)}
    return kept | {"rope_type": "default"}
