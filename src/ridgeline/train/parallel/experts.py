"""The experts of a mixture spread over ranks that read different tokens (expert parallelism).

Each of `ep` of the dp · cp ranks keeps whole experts (Lepikhin et al., "GShard", arXiv 2006.16668).
A rank sends every token to the ranks of its chosen experts, one all-to-all, and gets the results
back with a second; its router's weights are applied at home. Both exchanges, with uneven splits and
their backward, and the grouped matmuls in between are transformers' own. What is here: which rank
keeps which experts, and how their gradients are summed.

The `gradients` ranks are seen as copies x ep: a group of `ep` neighbours has all experts once. The
backward all-to-all brings an expert the gradients of all tokens of its group, so what remains to be
summed is over the copies: `sharding.py` puts FSDP2 around the experts over those ranks alone
(`expert_copies`), which then also shards their state there as `layout.zero` says.

The router's load-balancing loss of transformers (`output_router_logits`) is not part of the token
loss, with or without expert parallelism.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from ridgeline.errors import InputError
from ridgeline.train.ranks import Ranks

_AXES = ("expert_copies", "ep", "alone")


def spread_experts(part: nn.Module, ranks: Ranks) -> None:
    """Keep this rank's share of every mixture's experts, in place; nothing where `ep` is 1.

    Their parameters become DTensors, cut along the experts.

    Raises:
        InputError: There are no experts, or they do not divide, or the layout does not fit.
    """
    ep = ranks.layout.ep
    if ep == 1:
        return
    _check_layout(ranks)
    mixtures = {name: one for name, one in part.named_modules() if is_mixture(one)}
    if not mixtures and not hasattr(part, "stage_place"):
        raise InputError(
            f"layout.ep: {type(part).__name__} has no experts that transformers keeps in one"
            " tensor; use layout.ep = 1"
        )
    meshes = expert_meshes(ranks)
    for name, experts in mixtures.items():
        if experts.num_experts % ep:
            raise InputError(
                f"layout.ep {ep} does not divide the {experts.num_experts} experts of {name}"
            )
        _spread(experts, meshes)


def expert_copies(module: nn.Module) -> DeviceMesh | None:
    """The ranks that keep the same experts; None for modules that are no spread experts."""
    found: DeviceMesh | None = getattr(module, "expert_copies", None)
    return found


def expert_meshes(ranks: Ranks) -> DeviceMesh:
    """The `gradients` ranks as copies x ep (x 1: a rank by itself)."""
    size, ep = ranks.size("gradients"), ranks.layout.ep
    return ranks.axis("gradients")._unflatten(0, (size // ep, ep, 1), _AXES)


def is_mixture(module: nn.Module) -> bool:
    """Whether these are the experts of a mixture as transformers 5 keeps them, one tensor each."""
    return hasattr(module, "_is_expert_parallel") and hasattr(module, "num_experts")


def _check_layout(ranks: Ranks) -> None:
    layout = ranks.layout
    size = ranks.size("gradients")
    if size % layout.ep:
        raise InputError(f"layout.ep {layout.ep} does not divide dp x cp = {size}")
    if layout.etp > 1:
        raise InputError(
            "layout.etp: experts that are spread over ranks are not split as well; use"
            " layout.etp = 1 or layout.ep = 1"
        )
    if layout.sp:
        raise InputError(
            "layout.ep with layout.sp: the tensor-parallel ranks would send different tokens; use"
            " layout.sp = false"
        )


def _spread(experts: nn.Module, meshes: DeviceMesh) -> None:
    try:
        from transformers.distributed.expert_parallel import (
            EpDispatchExpertsParallel,
            MoEParamShard,
        )
    except ImportError:
        raise InputError(
            "layout.ep needs transformers 5.23 or later; run: pip install 'transformers>=5.23'"
        ) from None
    whole = MoEParamShard(Shard(0), shards_expert_dim=True)
    for name in list(experts._parameters):
        whole.shard_param(experts, name, meshes["ep"])
    # transformers can also share one batch among tensor-parallel ranks; here each has its own copy
    # of the experts and of the tokens, so that nothing is summed over them.
    EpDispatchExpertsParallel().install_forward(
        experts, meshes["ep"], tp_mesh=meshes["alone"], ep_implementation="all_to_all"
    )
    experts.expert_copies = meshes["expert_copies"]  # type: ignore[assignment]
