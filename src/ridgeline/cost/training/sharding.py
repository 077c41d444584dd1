"""Parameters that one device holds, by kind of sharding, and the groups that share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.adapters import adapter_parameters
from ridgeline.cost.training.collectives import Group, group_of
from ridgeline.cost.training.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters of one device before data-parallel sharding."""

    dense: Floats
    """Parameters of the layers of the fullest stage, routed experts left out."""
    experts: Floats
    embedding: Floats
    """Parameters of the first stage beside its layers."""
    head: Floats
    """Parameters of the last stage beside its layers: also the tied copy that a pipelined model
    keeps there."""

    @property
    def ends(self) -> Floats:
        """Parameters of the heavier end: embedding, head, or both without a pipeline."""
        return np.maximum(self.embedding, self.head)


def held_parameters(setting: Setting) -> Held:
    """What one device holds."""
    dims, layouts = setting.dims, setting.layouts
    # Layers that stages do not divide evenly: the fullest stage has one more.
    stage = np.ceil(dims.layers / layouts.pp) / dims.layers
    experts = dims.routed_parameters * stage / (layouts.ep * layouts.etp)
    dense = dims.dense_parameters * stage / layouts.tp
    one_stage = layouts.pp == 1
    table = dims.embedding_parameters / layouts.tp
    output = dims.outputs * dims.hidden / layouts.tp
    both = table + dims.untied * output
    return Held(
        dense=dense,
        experts=experts,
        embedding=np.where(one_stage, both, table),
        head=np.where(one_stage, both, output),
    )


def trained_parameters(setting: Setting) -> Held:
    """What one device computes gradients of: all that it holds, or the adapters of its layers."""
    held, frozen = held_parameters(setting), setting.frozen_weights
    return Held(
        dense=np.where(frozen, adapter_parameters(setting), held.dense),
        experts=np.where(frozen, 0.0, held.experts),
        embedding=np.where(frozen, 0.0, held.embedding),
        head=np.where(frozen, 0.0, held.head),
    )


def gathered_weight_bytes(setting: Setting) -> Floats:
    """Bytes per weight of a layer, as its shards travel."""
    trained = setting.software.weight_bytes
    # What is kept in more than 16 bits is cast before it is gathered.
    kept = np.minimum(setting.adapters.weight_bytes, trained)
    return np.where(setting.frozen_weights, kept, trained)


def data_group(setting: Setting) -> Group:
    """All ranks that hold the same dense parameters."""
    layouts = setting.layouts
    return group_of(setting, layouts.dp * layouts.cp, layouts.tp)


def shard_group(setting: Setting) -> Group:
    """Ranks over which the sharding stage spreads the dense parameters' state."""
    layouts = setting.layouts
    return group_of(setting, layouts.fsdp, layouts.tp)


def replica_group(setting: Setting) -> Group:
    """Ranks that hold the same shard: more than one with hybrid sharding."""
    layouts = setting.layouts
    copies = layouts.dp * layouts.cp / layouts.fsdp
    return group_of(setting, copies, layouts.tp * layouts.fsdp)


def expert_copies(setting: Setting) -> Floats:
    """Ranks that hold the same experts."""
    layouts = setting.layouts
    ranks = layouts.dp * layouts.cp * layouts.tp
    return np.maximum(ranks / (layouts.ep * layouts.etp), 1.0)


def expert_group(setting: Setting) -> Group:
    """Ranks that hold the same experts, as a group."""
    layouts = setting.layouts
    return group_of(setting, expert_copies(setting), layouts.ep * layouts.etp)
