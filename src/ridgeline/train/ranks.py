"""The place of this process among the others: its device, its index on each axis of parallelism.

The mesh has five axes, ordered as in Megatron-LM and torchtitan, outermost first: `pp`,
`replicate`, `shard`, `cp`, `tp`. What talks most stands innermost, where links are fastest.
Data-parallel ranks are `replicate` x `shard`; with ZeRO, parameters are sharded over `shard` x
`cp` (`fsdp` of the layout) and replicated over `replicate` (hybrid sharding, HSDP).

    name          ranks that                                     layout
    pp            hold different layers                          pp
    replicate     hold the same shard                            dp · cp / fsdp
    shard         share one copy of the state                    fsdp / cp
    cp            share one sequence                             cp
    tp            share one matrix                               tp
    data          read different sequences: replicate, shard     dp
    fsdp          shard parameters: shard, cp                    fsdp
    gradients     must agree on gradients: replicate, shard, cp  dp · cp
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout

_AXES = ("pp", "replicate", "shard", "cp", "tp")
_JOINED = {
    "data": ("replicate", "shard"),
    "fsdp": ("shard", "cp"),
    "gradients": ("replicate", "shard", "cp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The place of one process, which `join` makes and `leave` gives up."""

    layout: Layout
    device: torch.device
    mesh: DeviceMesh
    """Axes `pp`, `replicate`, `shard`, `cp`, `tp`."""
    axes: Mapping[str, DeviceMesh]
    """Each axis by itself, and those made of several: `data`, `fsdp`, `gradients`."""
    rank: int
    world: int
    local_rank: int
    local_world: int
    """Processes on this machine."""

    def axis(self, name: str) -> DeviceMesh:
        """The one-dimensional mesh of this process along an axis, joined ones included."""
        return self.axes[name]

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group of that axis."""
        return self.axis(name).get_group()

    def size(self, name: str) -> int:
        """Ranks along that axis."""
        return self.axis(name).size()

    def index(self, name: str) -> int:
        """This process's place along that axis, from 0."""
        return self.axis(name).get_local_rank()


def join(layout: Layout, *, backend: str = "auto", timeout_seconds: float = 600.0) -> Ranks:
    """Enter the process group that the environment describes (torchrun's variables).

    Without those variables this is a run of one process. NCCL serves CUDA devices, gloo the host.

    Raises:
        InputError: The layout does not fill the processes, or its parts do not fit each other.
    """
    world = _from_environment("WORLD_SIZE", 1)
    rank = _from_environment("RANK", 0)
    local_rank = _from_environment("LOCAL_RANK", 0)
    if layout.num_devices != world:
        raise InputError(
            f"the layout is of {layout.num_devices} processes (dp {layout.dp} x tp {layout.tp} x"
            f" pp {layout.pp} x cp {layout.cp}) and {world} were started; make them equal"
        )
    replicate, shard = _replicate_and_shard(layout)
    device = _device(local_rank)
    if not dist.is_initialized():
        store = dist.HashStore() if world == 1 else None
        dist.init_process_group(
            _backend(device, backend),
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_seconds),
        )
    sizes = (layout.pp, replicate, shard, layout.cp, layout.tp)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=_AXES)
    # A mesh is cut into axes once: every parameter's gradient is asked for some, at every step.
    axes = {name: mesh[name] for name in _AXES}
    axes |= {name: mesh[parts]._flatten(name) for name, parts in _JOINED.items()}
    return Ranks(
        layout=layout,
        device=device,
        mesh=mesh,
        axes=axes,
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=_from_environment("LOCAL_WORLD_SIZE", world),
    )


def leave() -> None:
    """Give the process group up; nothing if there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _replicate_and_shard(layout: Layout) -> tuple[int, int]:
    if layout.zero == 0:
        return layout.dp, 1
    if layout.fsdp % layout.cp:
        raise InputError(
            f"layout: fsdp {layout.fsdp} is not a multiple of cp {layout.cp}: the ranks that share"
            " a sequence shard parameters together"
        )
    shard = layout.fsdp // layout.cp
    if layout.dp % shard:
        raise InputError(f"layout: fsdp / cp = {shard} does not divide dp {layout.dp}")
    return layout.dp // shard, shard


def _backend(device: torch.device, wanted: str) -> str:
    """What carries the collectives of each kind of tensor."""
    if device.type != "cuda":
        if wanted == "nccl":
            raise InputError(
                'recipe: communication.backend "nccl": ranks compute on CPUs here; leave it out'
            )
        return "gloo"
    return "cpu:gloo,cuda:gloo" if wanted == "gloo" else "cpu:gloo,cuda:nccl"


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise InputError(f"environment: {name}={value!r} is not a number; start under torchrun")
    return int(value)


def compute_alone() -> None:
    """Give threads begun from here on one OpenMP thread each; the calling one keeps its own.

    Every thread that runs a parallel operator of torch gets an OpenMP team of its own. With more
    team threads than cores, libgomp's threads no longer spin at barriers but sleep at once
    (`gomp_throttled_spin_count`, libgomp/config/linux/wait.h), in *all* teams and for as long as
    the second team lives: small operators of the training loop then take up to three times as long.
    The thread that copies checkpoints would do that from the first save on.

    torch keeps the number per thread, and takes for a new thread what was set last in any
    (`at::init_num_threads`).
    """
    torch.get_num_threads()  # Fixes the calling thread's own number, which is lazily read.
    setter = threading.Thread(target=torch.set_num_threads, args=(1,))
    setter.start()
    setter.join()
