"""What a framework's file is asked for, and what it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.nodes import node_of
from ridgeline.models.spec import ModelSpec
from ridgeline.records.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One layout of one model on one cluster."""

    model: ModelSpec
    layout: Layout
    cluster: Cluster
    seq: int
    tokens: float | None = None
    """Tokens of the whole run, where that was asked for."""
    adapters: bool = False
    """Whether adapters are trained in place of the weights."""

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run; None: nothing says how long it is."""
        if self.tokens is None:
            return None
        return math.ceil(self.tokens / (self.layout.global_batch * self.seq))

    @property
    def per_node(self) -> int:
        """Processes on one host, of which a large domain has several."""
        host = node_of(self.cluster.device)[0].host_size or self.cluster.domain_size
        return min(self.cluster.num_devices, host)

    @property
    def num_nodes(self) -> int:
        """Nodes of `per_node` devices."""
        return -(-self.cluster.num_devices // self.per_node)

    @property
    def replicas(self) -> int:
        """Copies of each shard of the state."""
        return self.layout.dp * self.layout.cp // self.layout.fsdp


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A command line, and the files that it reads by name."""

    command: str
    files: dict[str, str] = field(default_factory=dict)


def lines(*parts: str) -> str:
    """A command of several lines."""
    return " \\\n    ".join(parts)


def torchrun(request: LaunchRequest) -> str:
    """The launcher, with the address of the first node in $MASTER_ADDR."""
    if request.num_nodes == 1:
        return f"torchrun --standalone --nproc_per_node={request.per_node}"
    return (
        f"torchrun --nnodes={request.num_nodes} --nproc_per_node={request.per_node} \\\n"
        "    --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500"
    )
