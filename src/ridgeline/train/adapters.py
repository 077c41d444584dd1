"""Small additions to frozen weights, through peft.

    lora       W x + (α/r) B A x                       Hu et al., arXiv 2106.09685
    qlora      the same over W in four bits            Dettmers et al., arXiv 2305.14314
    dora       magnitude and direction apart           Liu et al., arXiv 2402.09353
    adalora    P Λ Q with ranks that are allocated     Zhang et al., arXiv 2303.10512

The adapter goes into the empty skeleton; what it starts from depends on names alone, as all
weights do (`model.fill` asks `initial_weight`). Adapters are saved as peft saves them, so that
`PeftModel.from_pretrained(base, folder).merge_and_unload()` works.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from ridgeline.checkpoints.adapters import WEIGHTS_FILE
from ridgeline.checkpoints.layers import is_linear
from ridgeline.checkpoints.names import PEFT_PREFIX, original_name
from ridgeline.errors import InputError, MissingExtra
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_compression import RecipeAdapter
from ridgeline.train.four_bit import FourBitLinear, quantise, quantise_linears
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.part import FilledModel, Part, PartState
from ridgeline.train.ranks import Ranks
from ridgeline.train.weights import Weights

ADAPTER = "default"
"""peft's own name for the only adapter."""
PROJECTION = "distillation_projection"
"""The student's added layer; whoever exports a model leaves it out."""
_SEED = "adapter_seed"
_ADALORA_STANDARD_DEVIATION = 0.02
_ADALORA_START = 1.5
"""Ranks at the start over ranks at the end (AdaLoRA, section 4)."""
_ADALORA_WARMUP, _ADALORA_FINAL = 0.1, 0.3
"""Shares of the steps before allocation begins and after it has ended."""
_ADALORA_ALLOCATIONS = 50
_RANKER = ("ipt", "exp_avg_ipt", "exp_avg_unc")
"""What peft's RankAllocator remembers."""


def adapt(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """Put the recipe's adapter into a skeleton, in place; only the adapter is trainable then.

    Raises:
        InputError: The layout or the names of layers do not go with it.
    """
    wanted = recipe.adapter
    if wanted is None:
        return model
    _check(wanted, recipe)
    try:
        from peft import inject_adapter_in_model
    except ImportError:
        raise MissingExtra("peft", "train") from None
    if wanted.kind == "qlora":
        quantise_linears(model, model.get_output_embeddings())
    config = _peft_config(wanted, recipe)
    projection = model._modules.pop(PROJECTION, None)  # no part of what is adapted
    model.requires_grad_(requires_grad=False)
    try:
        inject_adapter_in_model(config, model, ADAPTER)
    except ValueError as error:
        names = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if is_linear(m)})
        raise InputError(
            f"recipe: adapter.targets = {list(wanted.targets)}: {error}; linear layers of this"
            f" model: {', '.join(names)}"
        ) from None
    if projection is not None:
        model.add_module(PROJECTION, projection)
    for name, module in model.named_modules():
        if "lora_" in name:
            setattr(module, _SEED, recipe.run.seed)
    for name, parameter in model.named_parameters():
        if "ranknum" in name:
            # A count that AdaLoRA divides by, which peft marks as trainable and does not save.
            parameter.requires_grad_(requires_grad=False)
    return model


def initial_weight(part: nn.Module, name: str, weights: Weights) -> Tensor:
    """The whole starting value of a parameter that no checkpoint has.

    peft's own: A as a linear layer's, B zero, so that the adapted model starts as the frozen one
    (AdaLoRA: Λ zero); DoRA's magnitudes are the lengths of the frozen weight's rows. A
    distillation's projection keeps lengths on average.
    """
    owner, _, own = name.rpartition(".")
    module = part.get_submodule(owner)
    if isinstance(module, FourBitLinear):
        whole = weights.full(original_name(f"{owner}.weight"))
        packed, scales = quantise(whole.to(module.dtype), module.block)
        return packed if own == "packed" else scales
    shape = part.get_parameter(name).shape
    if owner.endswith(PROJECTION):
        generator = _generator(0, original_name(name))
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
    if "lora_magnitude_vector" in name:
        layer = part.get_submodule(name.partition(".lora_magnitude_vector")[0])
        whole = weights.full(original_name(f"{owner.partition('.lora_magnitude')[0]}.weight"))
        return torch.linalg.norm(whole.T if layer.fan_in_fan_out else whole, dim=1)
    if "ranknum" in name:
        return torch.full(shape, float(module_rank(part, name)))
    if "lora_E" in name or ("lora_B" in name and not isinstance(module, nn.ParameterDict)):
        return torch.zeros(shape)
    generator = _generator(getattr(module, _SEED, 0), original_name(name))
    if isinstance(module, nn.ParameterDict):
        return torch.randn(shape, generator=generator) * _ADALORA_STANDARD_DEVIATION
    # A linear layer's kaiming_uniform_(a=√5) is uniform within 1/√inputs.
    bound = 1.0 / math.sqrt(shape[-1])
    return (torch.rand(shape, generator=generator) * 2.0 - 1.0) * bound


def module_rank(part: nn.Module, name: str) -> int:
    """The rank that the adapted layer of a parameter starts with."""
    layer: Any = part.get_submodule(name.partition(".ranknum")[0])
    return int(layer.r[ADAPTER])


def save_adapter(part: nn.Module, folder: Path, ranks: Ranks) -> None:
    """Write the adapter in peft's format. Every rank must call it; the first one writes."""
    from safetensors.torch import save_file

    config = copy(part.peft_config[ADAPTER])
    kept_ranks = getattr(config, "rank_pattern", None) or {}
    tensors = {}
    for name, parameter in named_parameters([part]):
        if "lora_" not in name:
            continue
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if ranks.rank == 0:
            kept = _kept(whole.detach().cpu(), name, kept_ranks)
            tensors[PEFT_PREFIX + _key(name)] = kept.contiguous()
    if ranks.rank:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config.inference_mode = True
    if kept_ranks:
        config.rank_pattern = {_key(name): kept for name, kept in kept_ranks.items()}
    config.save_pretrained(str(folder))


def _key(name: str) -> str:
    """The name without the adapter's, as peft stores it."""
    key = name.replace(f".{ADAPTER}.weight", ".weight").removesuffix(f".{ADAPTER}")
    return key.removesuffix(".weight") if "lora_magnitude_vector" in key else key


def _kept(whole: Tensor, name: str, kept_ranks: dict[str, list[bool]]) -> Tensor:
    """AdaLoRA stores the ranks that it allocated alone."""
    for letter in "AEB":
        kept = kept_ranks.get(name.replace(f"lora_{letter}", "lora_E"))
        if f"lora_{letter}" in name and kept is not None:
            return whole[:, kept] if letter == "B" else whole[kept]
    return whole


class RankAllocation(Part):
    """AdaLoRA in each step: what keeps P and Q orthogonal, and who keeps which rank."""

    name = "adalora"
    trainable_adapter_name = ADAPTER

    def __init__(self, model: nn.Module, config: Any) -> None:
        """Around the filled model. Attributes are named as peft's own `AdaLoraModel` has them."""
        from peft.tuners.adalora.layer import RankAllocator

        self.model = model
        self.peft_config = {ADAPTER: config}
        self.rankallocator: Any = RankAllocator(model, config, ADAPTER)

    @staticmethod
    def shape(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
        """Add the adapter, of whatever kind."""
        return adapt(model, recipe)

    @classmethod
    def make(cls, filled: FilledModel) -> RankAllocation | None:
        """`adapter.kind = "adalora"`; the other kinds do nothing in a step."""
        return cls.of(filled.modules)

    @staticmethod
    def of(modules: Sequence[nn.Module]) -> RankAllocation | None:
        """Make one for a filled model that has AdaLoRA; else None."""
        config = getattr(modules[0], "peft_config", {}).get(ADAPTER)
        if config is None or config.peft_type.value != "ADALORA":
            return None
        (model,) = modules
        return RankAllocation(model, config)

    def before_update(self, step: int) -> None:
        """Add the gradient of γ · mean ‖PᵀP - I‖ (eq. 4)."""
        del step
        wanted = [
            p for name, p in self.model.named_parameters() if "lora_A" in name or "lora_B" in name
        ]
        weight = self.peft_config[ADAPTER].orth_reg_weight / len(wanted)
        with torch.enable_grad():
            for parameter in wanted:
                # The ranks are the shorter dimension: Q is [r, in], P is [out, r].
                short = parameter if parameter.shape[0] <= parameter.shape[1] else parameter.T
                away = short @ short.T - torch.eye(short.shape[0], device=short.device)
                (gradient,) = torch.autograd.grad(weight * away.norm(), parameter)
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def after_update(self, step: int, *, moved: bool) -> None:
        """Move the budget of ranks."""
        del moved
        from peft.tuners.adalora.model import AdaLoraModel

        AdaLoraModel.update_and_allocate(self, step)

    def state_dict(self) -> PartState:
        """The importance of ranks as this rank sees it, and which are kept."""
        ranker = {key: getattr(self.rankallocator, key) for key in _RANKER}
        pattern = getattr(self.peft_config[ADAPTER], "rank_pattern", None)
        return PartState(own={"ranker": ranker, "rank_pattern": pattern})

    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from there."""
        del same_ranks
        device = next(self.model.parameters()).device
        for key, tensors in state.own["ranker"].items():
            placed = {name: one.to(device) for name, one in tensors.items()}
            setattr(self.rankallocator, key, placed)
        self.peft_config[ADAPTER].rank_pattern = state.own["rank_pattern"]


def _check(wanted: RecipeAdapter, recipe: Recipe) -> None:
    layout = recipe.layout
    for axis in ("tp", "pp"):
        if getattr(layout, axis) > 1:
            raise InputError(
                f"layout: {axis} = {getattr(layout, axis)} with adapter.kind {wanted.kind}:"
                f" adapters train with dp, fsdp and cp; set layout.{axis} = 1"
            )
    if wanted.kind == "adalora" and (layout.zero or layout.fsdp > 1):
        raise InputError(
            "adapter.kind adalora compares the ranks of all layers at once and needs them whole:"
            " set layout.zero = 0, or use lora"
        )
    if wanted.rank < 1:
        raise InputError(f"recipe: adapter.rank is {wanted.rank}; it must be 1 or more")


def _peft_config(wanted: RecipeAdapter, recipe: Recipe) -> Any:
    from peft import AdaLoraConfig, LoraConfig, TaskType

    shared: dict[str, Any] = {
        "task_type": TaskType.CAUSAL_LM,
        "lora_alpha": wanted.alpha,
        "lora_dropout": wanted.dropout,
        "target_modules": list(wanted.targets) or "all-linear",
        "base_model_name_or_path": recipe.model.checkpoint or None,
    }
    if wanted.kind != "adalora":
        return LoraConfig(r=wanted.rank, use_dora=wanted.kind == "dora", **shared)
    steps = _steps(recipe)
    return AdaLoraConfig(
        init_r=math.ceil(_ADALORA_START * wanted.rank),
        target_r=wanted.rank,
        total_step=steps,
        tinit=int(_ADALORA_WARMUP * steps),
        tfinal=int(_ADALORA_FINAL * steps),
        deltaT=max(1, steps // _ADALORA_ALLOCATIONS),
        **shared,
    )


def _steps(recipe: Recipe) -> int:
    if not recipe.steps:
        raise InputError(
            "adapter.kind adalora allocates ranks over the whole run: set run.steps or data.tokens"
        )
    return recipe.steps


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
