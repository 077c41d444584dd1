"""Which data-parallel rank keeps which parameters, gradients and optimizer states.

    zero   between steps   within a step                                mechanism
    0      whole           gradients summed                             DDP; FSDP2's replicate
    1      shards          whole; gradients reduced once, at the end    FSDP2
    2      shards          whole; gradients reduced every micro-batch   FSDP2
    3      shards          each block whole while it is computed        FSDP2

ZeRO: Rajbhandari et al., arXiv 1910.02054, section 5. Stages 1 to 3 are one mechanism,
`fully_shard` of torch, since its parameters, gradients and optimizer states are sharded from the
start; the stages differ in when shards are gathered and reduced (`plain.py`, and
torch.distributed.pipelining for stages). Where `layout.fsdp` is below dp · cp, shards are repeated
(hybrid sharding): gradients are reduced inside and then across the copies.

Gradients are summed, not averaged: see `build.py`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.train.blocks import blocks_of
from ridgeline.train.parallel.experts import expert_copies
from ridgeline.train.ranks import Ranks

_COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""What FSDP2 casts parameters to; fp8 casts inside its own linear layers, from bf16."""
_REDUCE = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MEGABYTE = 2**20


def uses_fsdp(layout: Layout) -> bool:
    """Whether FSDP2 holds the parameters (it then casts them, too).

    DDP serves where only dp and cp exceed 1: it knows nothing of DTensors or of pipeline stages.
    """
    if layout.zero or layout.on_host:
        return True
    return layout.dp * layout.cp > 1 and (layout.tp > 1 or layout.pp > 1 or layout.ep > 1)


def shard(part: nn.Module, recipe: Recipe, ranks: Ranks) -> nn.Module:
    """Put FSDP2 around each block and the rest of a part, in place, as the layout says.

    To be called on the meta device, after tensor parallelism. What must be whole in the same
    moment (embedding, final norm, head) is gathered with the root.
    """
    if not uses_fsdp(recipe.layout):
        return part
    policy, offload = _policy(recipe), _offload(recipe, ranks)
    blocks = blocks_of(part)
    # First the innermost: what FSDP2 has already is left out around it.
    spread = [(one, expert_copies(one)) for one in part.modules()]
    experts = [(one, copies) for one, copies in spread if copies is not None]
    if recipe.layout.zero == 0:
        mesh = ranks.axis("gradients")
        for one, ranks_of_it in [*experts, *((one, mesh) for one in [*blocks, part])]:
            replicate(one, mesh=ranks_of_it, mp_policy=policy, offload_policy=offload)
    else:
        mesh = _mesh(ranks)
        for one, copies in experts:
            fully_shard(
                one,
                mesh=copies,
                reshard_after_forward=recipe.layout.zero == 3,
                mp_policy=policy,
                offload_policy=offload,
            )
        # The last block is needed first in backward: gathering it again at once is a loss.
        again = blocks[:-1] if recipe.layout.zero == 3 else []
        for one in [*blocks, part]:
            fully_shard(
                one,
                mesh=mesh,
                reshard_after_forward=any(one is block for block in again),
                mp_policy=policy,
                offload_policy=offload,
            )
    for module in part.modules():
        if isinstance(module, FSDPModule):
            sum_gradients(module)
    return part


def sum_gradients(module: FSDPModule) -> None:
    """Reduce by plain sums; gloo has no other, and losses are divided beforehand."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def share_gradients(part: nn.Module, recipe: Recipe, ranks: Ranks) -> nn.Module:
    """A filled part as its passes call it: in DDP where that is what sums its gradients."""
    if uses_fsdp(recipe.layout) or recipe.layout.dp * recipe.layout.cp == 1:
        return part
    if recipe.communication.sync_every > 1:
        return part
    return DistributedDataParallel(
        part,
        process_group=ranks.group("gradients"),
        bucket_cap_mb=recipe.communication.bucket_bytes / _MEGABYTE,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )


def _mesh(ranks: Ranks) -> DeviceMesh:
    """One axis where every rank has a shard of its own, else copies times shards."""
    if ranks.size("replicate") == 1:
        return ranks.axis("fsdp")
    # Slicing the whole mesh by a joined axis is deprecated; this is what FSDP2 does with tp.
    return DeviceMesh._concatenate([ranks.axis("replicate"), ranks.axis("fsdp")])


def _policy(recipe: Recipe) -> MixedPrecisionPolicy:
    precision = recipe.layout.precision
    reduce = _REDUCE[recipe.precision.reduce]
    if precision == "fp32":
        return MixedPrecisionPolicy(reduce_dtype=reduce)
    compute_dtype = _COMPUTE_DTYPE[precision]
    return MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=reduce, cast_forward_inputs=False
    )


def _offload(recipe: Recipe, ranks: Ranks) -> OffloadPolicy:
    if not recipe.layout.on_host:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda")
