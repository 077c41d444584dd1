"""What a checkpoint holds of a run, under names that every layout shares.

    model/NAME                      parameters; with an adapter, those that are trained
    optimizer/NAME/KEY              the optimizer's state of a parameter
    average/NAME                    the moving average of the weights
    mask/NAME, early/NAME           which weights stay; with a lottery, those to go back to
    shared                          numbers that all ranks have alike: loader, loss scale, updates
    rankR/own                       one rank's random generators; AdaLoRA's importance of ranks
    rankR/wire/KIND/NAME            its error memory of compressed gradients
    rankR/agreed/PLACE, rankR/outer/…  with local SGD: what was agreed last, the outer momentum

Tensors are as the rank holds them, DTensors where a layout cuts them: torch's checkpoint saves each
element once and cuts anew on load. With local SGD every rank has weights of its own: the first
three stand under `rankR/` too, and another number of ranks takes rank R mod the saved number.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
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
from ridgeline.train.data import Loader
from ridgeline.train.optimizers.build import as_one_module, named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.parallel.context import cut_sequences
from ridgeline.train.ranks import Ranks

Saved = dict[str, Tensor | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One rank's."""

    built: Built
    loader: Loader
    ranks: Ranks

    def gather(self) -> Saved:
        """All of it; tensors are the run's own, and change with its next update."""
        rank = self.ranks.rank
        saved: Saved = dict(self._tensors(rank))
        saved["shared"] = _packed(self._shared())
        saved[f"rank{rank}/own"] = _packed(self._own())
        saved |= self._wire(rank)
        saved |= self._agreed(rank)
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
        tensors = dict(self._tensors(source))
        wanted: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if name in there:
                _check_size(name, tensor, there[name])
                wanted[name] = tensor
            elif "optimizer/" not in name:
                raise InputError(f"{path} has no {name}: it is of another model or adapter")
        own, shared = f"rank{source}/own", "shared"
        wanted |= {own: b"", shared: b""}
        # Memories belong to as many ranks as there were.
        private = [f"rank{source}/agreed/", f"rank{source}/outer/"]
        private += [f"rank{source}/wire/"] if world == self.ranks.world else []
        for name, what in there.items():
            if isinstance(what, TensorStorageMetadata) and name.startswith(tuple(private)):
                wanted[name] = torch.empty(what.size, dtype=what.properties.dtype)
        dcp.load(wanted, checkpoint_id=path, process_group=group)
        self._take_shared(_unpacked(wanted[shared]))
        self._take_optimizer(wanted, source)
        own_state = _unpacked(wanted[own])
        self._take_wire(wanted, own_state, source, same=world == self.ranks.world)
        self._take_agreed(wanted, own_state, source)
        self._take_own(own_state)

    def _prefix(self, rank: int) -> str:
        return f"rank{rank}/" if self.built.local is not None else ""

    def _tensors(self, rank: int) -> Iterator[tuple[str, Tensor]]:
        """What torch cuts anew where the layout is another."""
        prefix, parts = self._prefix(rank), self.built.passes.parts
        adapted = any(hasattr(part, "peft_config") for part in parts)
        for name, parameter in named_parameters(parts):
            if parameter.requires_grad or not adapted:
                yield f"{prefix}model/{name}", parameter.detach()
            for key, value in self.built.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield from _whole_or_inner(f"optimizer/{name}/{key}", value, prefix, rank)
        if self.built.average is not None:
            for name, average in self.built.average.state_dict().items():
                yield f"{prefix}average/{name}", average
        if self.built.sparse is not None:
            yield from self.built.sparse.state_dict().items()

    def _shared(self) -> dict[str, Any]:
        return {
            "loader": self.loader.state_dict(),
            "precision": self.built.precision.state_dict(),
            "updates": max(group["updates"] for group in self.built.optimizer.param_groups),
        }

    def _take_shared(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        self.built.precision.load_state_dict(state["precision"])
        for group in self.built.optimizer.param_groups:
            group["updates"] = state["updates"]

    def _own(self) -> dict[str, Any]:
        built = self.built
        own: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),  # noqa: NPY002 - what libraries draw from
            "python": random.getstate(),
        }
        if self.ranks.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.ranks.device)
        if built.wire is not None:
            own["exchanges"] = built.wire.state_dict()["exchanges"]
        if built.local is not None:
            own["alone"] = built.local.state_dict()["alone"]
        if built.allocation is not None:
            ranker = built.allocation.rankallocator
            (config,) = built.allocation.peft_config.values()
            own["ranker"] = {key: getattr(ranker, key) for key in _RANKER}
            own["rank_pattern"] = getattr(config, "rank_pattern", None)
        return own

    def _take_own(self, own: dict[str, Any]) -> None:
        torch.set_rng_state(own["torch"])
        np.random.set_state(own["numpy"])  # noqa: NPY002
        random.setstate(own["python"])
        if "cuda" in own and self.ranks.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda"], self.ranks.device)
        if self.built.allocation is not None and "ranker" in own:
            for key, tensors in own["ranker"].items():
                placed = {name: one.to(self.ranks.device) for name, one in tensors.items()}
                setattr(self.built.allocation.rankallocator, key, placed)
            (config,) = self.built.allocation.peft_config.values()
            config.rank_pattern = own["rank_pattern"]

    def _wire(self, rank: int) -> Saved:
        if self.built.wire is None:
            return {}
        memories = self.built.wire.state_dict()["memories"]
        return {
            f"rank{rank}/wire/{kind}/{name}": tensor
            for kind, tensors in memories.items()
            for name, tensor in tensors.items()
        }

    def _take_wire(
        self, saved: dict[str, Any], own: dict[str, Any], source: int, *, same: bool
    ) -> None:
        if self.built.wire is None or "exchanges" not in own:
            return
        memories: dict[str, dict[str, Tensor]] = {
            kind: {} for kind in self.built.wire.state_dict()["memories"]
        }
        for kind, name, tensor in _under(f"rank{source}/wire/", saved):
            memories.setdefault(kind, {})[name] = tensor.to(self.ranks.device)
        if not same or not any(memories.values()):
            # Nothing is remembered: as at the start of a run.
            self.built.wire.load_state_dict(
                self.built.wire.state_dict() | {"exchanges": own["exchanges"]}
            )
            return
        self.built.wire.load_state_dict({"exchanges": own["exchanges"], "memories": memories})

    def _agreed(self, rank: int) -> Saved:
        if self.built.local is None:
            return {}
        state = self.built.local.state_dict()
        saved: Saved = {
            f"rank{rank}/agreed/0/{place}": tensor for place, tensor in enumerate(state["agreed"])
        }
        for place, of_one in state["outer"].get("state", {}).items():
            momentum = of_one.get("momentum_buffer")
            if momentum is not None:
                saved[f"rank{rank}/outer/{place}/momentum_buffer"] = momentum.clone()
        return saved

    def _take_agreed(self, saved: dict[str, Any], own: dict[str, Any], source: int) -> None:
        local_sgd = self.built.local
        if local_sgd is None:
            return
        agreed = {int(place): tensor for _, place, tensor in _under(f"rank{source}/agreed/", saved)}
        momenta = {
            int(place): {"momentum_buffer": tensor.to(self.ranks.device)}
            for place, _, tensor in _under(f"rank{source}/outer/", saved)
        }
        state = local_sgd.state_dict()
        state["alone"] = own["alone"]
        state["agreed"] = [agreed[place] for place in sorted(agreed)]
        if state["outer"]:
            state["outer"] = state["outer"] | {"state": momenta}
        local_sgd.load_state_dict(state)

    def _settle_buckets(self) -> None:
        """Let DistributedDataParallel group its gradients as it does after a first step.

        In which order ranks add numbers up, and what shares a compressed message, depends on the
        grouping; a run that goes on would begin with the first one once more.
        """
        if self.built.wire is None:
            return
        batches = next(self.loader)[:1]
        targets = max(1, sum(batch.num_targets() for batch in batches))
        self.built.passes.run([cut_sequences(batch, self.ranks) for batch in batches], targets)
        self.built.wire.take()

    def _make_optimizer_state(self) -> None:
        """State exists from the first step on; torch takes one that changes nothing."""
        self.built.optimizer.zero_grad(set_to_none=True)
        get_optimizer_state_dict(as_one_module(self.built.passes.parts), self.built.optimizer)

    def _take_optimizer(self, saved: dict[str, Any], source: int) -> None:
        """Tensors were loaded in place; what never had a gradient has no state."""
        prefix = self._prefix(source)
        optimizer = self.built.optimizer
        for name, parameter in named_parameters(self.built.passes.parts):
            known = (f"{prefix}optimizer/{name}/", f"rank{source}/optimizer/{name}/")
            if parameter in optimizer.state and not any(key.startswith(known) for key in saved):
                del optimizer.state[parameter]


_RANKER = ("ipt", "exp_avg_ipt", "exp_avg_unc")
"""What peft's RankAllocator remembers."""


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


def _under(prefix: str, saved: dict[str, Any]) -> Iterator[tuple[str, str, Tensor]]:
    """First component after the prefix, the rest, and the tensor."""
    for name, value in saved.items():
        if name.startswith(prefix):
            first, _, rest = name.removeprefix(prefix).partition("/")
            yield first, rest, value


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Any:
    # Written by this run, and its checksum was compared.
    return torch.load(io.BytesIO(content), weights_only=False, map_location="cpu")
