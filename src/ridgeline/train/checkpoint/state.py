"""What a checkpoint holds of a run, under names that every layout shares.

    model/NAME                  parameters; with an adapter, those that are trained
    optimizer/NAME/KEY          the optimizer's state of a parameter
    parts/PART/NAME             a part's tensors that are placed as the weights are
    shared                      values that all ranks have alike: loader, updates, the parts' own
    rankR/own                   one rank's random generators, and its values of each part
    rankR/private/PART/NAME     one rank's own tensors of a part

Tensors are as the rank holds them, DTensors where a layout cuts them: torch's checkpoint saves each
element once and cuts anew on load. With local SGD every rank has weights of its own: the first
three stand under `rankR/` too, and another number of ranks takes rank R mod the saved number.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor

from ridgeline.errors import InputError
from ridgeline.train.build import Built
from ridgeline.train.optimizers.build import as_one_module, named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.parallel.context import cut_sequences
from ridgeline.train.part import PartState
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import Feed

Saved = dict[str, Tensor | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """All that one rank has to save, gathered and restored."""

    built: Built
    loader: Feed
    ranks: Ranks

    def gather(self) -> Saved:
        """Everything by name; tensors are the run's own, and change with its next update."""
        rank = self.ranks.rank
        states = {part.name: part.state_dict() for part in self.built.parts}
        saved: Saved = dict(self._tensors(rank, states))
        shared, own = self._shared(), self._generators()
        for name, state in states.items():
            shared[f"part {name}"], own[f"part {name}"] = state.shared, state.own
            saved |= {f"{_private(rank, name)}{key}": one for key, one in state.private.items()}
        saved["shared"] = _packed(shared)
        saved[f"rank{rank}/own"] = _packed(own)
        return saved

    def restore(self, path: Path, world: int, group: dist.ProcessGroup | None) -> None:
        """Go on from a checkpoint that `world` ranks wrote. Every rank must call it.

        Raises:
            InputError: It is of another model, or of a layout that this one cannot take over.
        """
        self._settle_buckets()
        source = self.ranks.rank % world
        there = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        self._make_optimizer_state()
        states = {part.name: part.state_dict() for part in self.built.parts}
        wanted: dict[str, Any] = {}
        for name, tensor in self._tensors(source, states):
            if name in there:
                _check_size(name, tensor, there[name])
                wanted[name] = tensor
            elif "optimizer/" not in name:
                raise InputError(f"{path} has no {name}: it is of another model or adapter")
        wanted |= {"shared": b"", f"rank{source}/own": b""}
        private = tuple(_private(source, name) for name in states)
        for name, what in there.items():
            if isinstance(what, TensorStorageMetadata) and name.startswith(private):
                wanted[name] = torch.empty(what.size, dtype=what.properties.dtype)
        dcp.load(wanted, checkpoint_id=path, process_group=group)
        shared, own = _unpacked(wanted["shared"]), _unpacked(wanted[f"rank{source}/own"])
        self._take_shared(shared)
        self._take_optimizer(wanted, source)
        for part in self.built.parts:
            if f"part {part.name}" not in own:
                continue  # a layout that had no use for it wrote the checkpoint
            prefix = _private(source, part.name)
            saved = PartState(
                private={
                    n.removeprefix(prefix): one for n, one in wanted.items() if n.startswith(prefix)
                },
                shared=shared[f"part {part.name}"],
                own=own[f"part {part.name}"],
            )
            part.load_state_dict(saved, same_ranks=world == self.ranks.world)
        self._take_generators(own)

    def _prefix(self, rank: int) -> str:
        return f"rank{rank}/" if self.built.ranks_alone else ""

    def _tensors(self, rank: int, states: Mapping[str, PartState]) -> Iterator[tuple[str, Tensor]]:
        """Tensors that torch cuts anew where the layout is another."""
        prefix, modules = self._prefix(rank), self.built.passes.modules
        adapted = any(hasattr(module, "peft_config") for module in modules)
        for name, parameter in named_parameters(modules):
            if parameter.requires_grad or not adapted:
                yield f"{prefix}model/{name}", parameter.detach()
            for key, value in self.built.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield from _whole_or_inner(f"optimizer/{name}/{key}", value, prefix, rank)
        for part, state in states.items():
            for key, tensor in state.placed.items():
                yield f"{prefix}parts/{part}/{key}", tensor

    def _shared(self) -> dict[str, Any]:
        return {
            "loader": self.loader.state_dict(),
            "updates": max(group["updates"] for group in self.built.optimizer.param_groups),
        }

    def _take_shared(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        for group in self.built.optimizer.param_groups:
            group["updates"] = state["updates"]

    def _generators(self) -> dict[str, Any]:
        """This rank's random generators."""
        own: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),  # noqa: NPY002 - what libraries draw from
            "python": random.getstate(),
        }
        if self.ranks.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.ranks.device)
        return own

    def _take_generators(self, own: dict[str, Any]) -> None:
        torch.set_rng_state(own["torch"])
        np.random.set_state(own["numpy"])  # noqa: NPY002
        random.setstate(own["python"])
        if "cuda" in own and self.ranks.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda"], self.ranks.device)

    def _settle_buckets(self) -> None:
        """Let DistributedDataParallel group its gradients as it does after a first step.

        In which order ranks add numbers up, and what shares a compressed message, depends on the
        grouping; a run that goes on would begin with the first one once more.
        """
        if not any(part.remembers_buckets for part in self.built.parts):
            return
        batches = next(self.loader)[:1]
        targets = max(1, sum(batch.num_targets() for batch in batches))
        self.built.passes.run([cut_sequences(batch, self.ranks) for batch in batches], targets)

    def _make_optimizer_state(self) -> None:
        """Make the state that exists from the first step on: torch takes one without effect."""
        self.built.optimizer.zero_grad(set_to_none=True)
        modules = self.built.passes.modules
        get_optimizer_state_dict(as_one_module(modules), self.built.optimizer)

    def _take_optimizer(self, saved: dict[str, Any], source: int) -> None:
        """Tensors were loaded in place; what never had a gradient has no state."""
        prefix = self._prefix(source)
        optimizer = self.built.optimizer
        for name, parameter in named_parameters(self.built.passes.modules):
            known = (f"{prefix}optimizer/{name}/", f"rank{source}/optimizer/{name}/")
            if parameter in optimizer.state and not any(key.startswith(known) for key in saved):
                del optimizer.state[parameter]


def _private(rank: int, part: str) -> str:
    """What the names of a part's own tensors begin with."""
    return f"rank{rank}/private/{part}/"


def _whole_or_inner(
    name: str, value: Tensor, prefix: str, rank: int
) -> Iterator[tuple[str, Tensor]]:
    """A tensor by its name, or, of a quantised one, the tensors that it consists of."""
    inner = local(value)
    if not hasattr(inner, "__tensor_flatten__"):
        yield prefix + name, value
        return
    # Blocks of a shard are this rank's alone: no other layout has the same.
    prefix = f"rank{rank}/" if isinstance(value, DTensor) else prefix
    keys, _ = cast("Any", inner).__tensor_flatten__()
    for key in keys:
        yield f"{prefix}{name}/{key}", getattr(inner, key)


def _check_size(name: str, tensor: Tensor, there: Any) -> None:
    if isinstance(there, TensorStorageMetadata) and there.size != tensor.shape:
        raise InputError(
            f"{name} has shape {tuple(there.size)} in the checkpoint and {tuple(tensor.shape)} in"
            " this run; go on with the model, and with adamw8bit the layout, that wrote it"
        )


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Any:
    # Written by this run, and its checksum was compared.
    return torch.load(io.BytesIO(content), weights_only=False, map_location="cpu")
