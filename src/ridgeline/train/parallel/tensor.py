"""Matrices split over ranks, and sequences split between those matrices.

Which matrix is split how is the model's own plan in transformers (`base_model_tp_plan`): columns,
then rows, so that one sum follows each attention and each MLP (Megatron-LM, Shoeybi et al., arXiv
1909.08053, section 3). Embedding and head are split over the vocabulary, and logits stay split
(`loss.py`). With `layout.sp` that sum is reduce-scattered along the sequence instead, and what lies
between (norms, residuals, dropout) sees only a share of the tokens (Korthikanti et al., arXiv
2205.05198, section 4.2.2).

Every parameter of a split part is a DTensor on the `tp` axis, copied ones too, so that optimizers
and sharding meet one mesh. Modules that are not matmuls run on plain local tensors; where
each rank sees other tokens or other heads, the gradient of a copied parameter is a partial sum,
and is summed over the axis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from transformers import PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.train.blocks import require_blocks
from ridgeline.train.ranks import Ranks

_SEQUENCE = Shard(1)
_COPIED = "replicated_with_grad_allreduce"
_EXPERTS = {"packed_colwise", "moe_tp_experts"}
_KNOWN = {"colwise", "rowwise", _COPIED, *_EXPERTS}


def split_matrices(part: nn.Module, ranks: Ranks) -> None:
    """Split a part (on the meta device) over the `tp` axis, in place.

    Raises:
        InputError: The model has no plan, or it asks for what is not here.
    """
    if ranks.size("tp") == 1:
        return
    mesh = ranks.axis("tp")
    assert isinstance(part, PreTrainedModel)
    model = part
    plan = plan_of(model)
    sp = ranks.layout.sp
    between = _SEQUENCE if sp else Replicate()
    for block in require_blocks(part, "tensor parallelism"):
        own = _of_block(model, block, plan)
        _split_block(block, own, mesh, between, ranks.layout.etp)
    _split_ends(part, model, mesh, sp)
    _copy_the_rest(part, mesh, partial=sp)


def plan_of(model: PreTrainedModel) -> Mapping[str, str]:
    """Which of a model's matrices are split how, by transformers' own plan.

    Raises:
        InputError: There is no plan, or it asks for what is not here.
    """
    plan = getattr(model.config, "base_model_tp_plan", None)
    name = model.config.model_type
    if not plan:
        raise InputError(
            f"layout.tp: transformers has no tensor-parallel plan for {name!r} models; use"
            " layout.tp = 1 and shard with layout.zero"
        )
    unknown = sorted(set(plan.values()) - _KNOWN)
    if unknown:
        raise InputError(
            f"layout.tp: the plan of {name!r} models needs {', '.join(unknown)}, which is not"
            " here; use layout.tp = 1 and shard with layout.zero"
        )
    return plan


def _of_block(model: PreTrainedModel, block: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """The plan of one block: names relative to it."""
    base = model.base_model
    name = next(name for name, module in base.named_modules() if module is block)
    found = {}
    for pattern, style in plan.items():
        own = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        for inner, _ in [*block.named_modules(), *block.named_parameters()]:
            if own.fullmatch(f"{name}.{inner}"):
                found[inner] = style
    return found


def _split_block(
    block: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh, between: Placement, etp: int
) -> None:
    """Split one block's matrices; `between` is how activations lie outside them."""
    experts = [name for name, style in plan.items() if style == "moe_tp_experts"]
    mixtures = [name.rpartition(".")[0] for name in experts]
    modules = dict(block.named_modules())
    matrices: dict[str, ParallelStyle] = {}
    gathered: dict[str, Placement] = {}
    for name, style in plan.items():
        inside = any(name.startswith(f"{mixture}.") for mixture in mixtures)
        if inside and etp == 1:
            continue
        outside = Replicate() if inside else between
        if style == "colwise":
            matrices[name] = ColwiseParallel()
            gathered[name.rpartition(".")[0]] = outside
        elif style == "rowwise" and name in modules:
            matrices[name] = RowwiseParallel(output_layouts=outside)
    for name, style in plan.items():
        if style == _COPIED:
            _copy(modules[name], mesh)
            _run_on_local(modules[name], partial=True)
    for name, placement in gathered.items():
        _gather_input(modules[name], mesh, placement, as_dtensor=True)
    parallelize_module(block, mesh, matrices)
    if etp > 1:
        for name, mixture in zip(experts, mixtures, strict=True):
            _split_experts(modules[name], mesh)
            _around_mixture(modules[mixture], mesh, between)


def _split_experts(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Columns of both halves of `gate_up_proj`, rows of `down_proj`, of every expert.

    Every rank routes every token and adds its share of the hidden width; sums over ranks follow
    in both directions (`moe_tp_experts` of transformers).
    """
    up, down = experts._parameters["gate_up_proj"], experts._parameters["down_proj"]
    assert up is not None
    assert down is not None
    experts._parameters["gate_up_proj"] = _distributed(up, mesh, _StridedShard(1, split_factor=2))
    experts._parameters["down_proj"] = _distributed(down, mesh, Shard(2))
    _run_on_local(experts, partial=False)
    original = experts.forward

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        output = original(_sum_gradients(hidden, mesh), chosen, _sum_gradients(weights, mesh))
        return _moved(output, mesh, Partial(), Replicate())

    experts.forward = forward  # type: ignore[method-assign]


def _around_mixture(mixture: nn.Module, mesh: DeviceMesh, between: Placement) -> None:
    """Inside a mixture every rank has every token."""
    _copy_the_rest(mixture, mesh, partial=False)
    if between == Replicate():
        return
    _gather_input(mixture, mesh, between, as_dtensor=False)
    _after(mixture, lambda output: _moved(output, mesh, Replicate(), between))


def _split_ends(part: nn.Module, model: PreTrainedModel, mesh: DeviceMesh, sp: bool) -> None:
    """Embedding and head by rows of the vocabulary; the sequence is cut between the two."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = _weight(embedding) is not None and _weight(embedding) is _weight(head)
    if isinstance(embedding, nn.Embedding):
        parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()))
    blocks = require_blocks(part, "tensor parallelism")
    if sp:
        _before(blocks[0], lambda hidden: _moved(hidden, mesh, Replicate(), _SEQUENCE))
    if isinstance(head, nn.Linear):
        layout = _SEQUENCE if sp else Replicate()
        style = ColwiseParallel(input_layouts=layout, use_local_output=False)
        parallelize_module(head, mesh, style)
    elif sp:
        _after(blocks[-1], lambda hidden: _moved(hidden, mesh, _SEQUENCE, Replicate()))
    if tied:
        head._parameters["weight"] = embedding._parameters["weight"]


def _copy_the_rest(part: nn.Module, mesh: DeviceMesh, *, partial: bool) -> None:
    """What is not split is on every rank, as a DTensor too."""
    for module in part.modules():
        plain = [one for one in module._parameters.values() if one is not None]
        if plain and not any(isinstance(one, DTensor) for one in plain):
            _copy(module, mesh)
            _run_on_local(module, partial=partial)


def _copy(module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = _distributed(parameter, mesh, Replicate())


def _distributed(parameter: nn.Parameter, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    tensor = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=None)
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def _run_on_local(module: nn.Module, *, partial: bool) -> None:
    """Let a module's forward see plain tensors in place of its DTensors.

    DTensor would work its way through every operation of a norm; the result is the same. With
    `partial`, each rank's gradient is one summand.
    """
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        kept = {name: one for name, one in module._parameters.items() if isinstance(one, DTensor)}
        # Plain tensors stand in for parameters only while forward runs.
        module._parameters.update({name: _plain(one, partial) for name, one in kept.items()})  # type: ignore[misc]
        try:
            return original(*args, **kwargs)
        finally:
            module._parameters.update(kept)  # type: ignore[arg-type]

    module.forward = forward  # type: ignore[method-assign]


def _plain(parameter: DTensor, partial: bool) -> Tensor:
    if not partial:
        return parameter.to_local()
    # `redistribute` to where it is already: its backward turns the partial sum into a whole one.
    copied = parameter.redistribute(placements=parameter.placements)
    return copied.to_local(grad_placements=[Partial()])


def _sum_gradients(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The same tensor; its gradient is summed over ranks."""
    whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def _moved(local: Tensor, mesh: DeviceMesh, now: Placement, then: Placement) -> Tensor:
    tensor = DTensor.from_local(local, mesh, [now], run_check=False)
    return tensor.redistribute(placements=[then]).to_local()


def _gather_input(module: nn.Module, mesh: DeviceMesh, now: Placement, *, as_dtensor: bool) -> None:
    """Make the module's hidden state whole, once for all of its matrices.

    As a DTensor, so that the gradients that each matrix returns are added up as partial sums and
    reduced once.
    """

    def whole(hidden: Tensor) -> Tensor:
        tensor = DTensor.from_local(hidden, mesh, [now], run_check=False)
        if now != Replicate():
            tensor = tensor.redistribute(placements=[Replicate()])
        return tensor if as_dtensor else tensor.to_local()

    _before(module, whole)


def _before(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change what a module calls its hidden state, given by position or by name."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _after(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change a module's output, or the first of several."""

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    module.register_forward_hook(hook)


def _weight(module: object) -> object:
    return module._parameters.get("weight") if isinstance(module, nn.Module) else None
