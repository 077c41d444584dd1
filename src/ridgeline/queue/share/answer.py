"""Answers `ridgeline queue share`: GPUs and their parts for all workloads, and how good that is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.mig import mig_devices, mig_geometry, sharing_losses
from ridgeline.queue.share.assign import MOST_NODES, PartAssigner
from ridgeline.queue.share.capacity import PartChoice, in_doubt, part_choices
from ridgeline.queue.share.deal import as_records, dealt, node_kinds
from ridgeline.queue.share.slots import CAVEATS, GIVES, MODES, Mode, SlotKind, slot_kinds
from ridgeline.queue.share.workload import ServedWorkload
from ridgeline.records.queue_sharing import SharedWorkload, SharePlan

HEADROOM = 0.2
"""The part of what GPUs can do that is left free for bursts, as `plan serving` has it."""


def share_gpus(
    workloads: Sequence[ServedWorkload],
    devices: Sequence[str],
    *,
    allow: Collection[Mode] = MODES,
    headroom: float = HEADROOM,
    prices: Mapping[str, float] | None = None,
    losses: Mapping[str, float] | None = None,
    gpus_per_node: int = 8,
    most_nodes: int = MOST_NODES,
) -> SharePlan:
    """The cheapest GPUs, split among workloads.

    Args:
        workloads: What is to be served.
        devices: Names of devices that may be used.
        allow: Ways of sharing that may be used.
        headroom: Part of the GPUs' work that is left free.
        prices: USD per GPU-hour by device; others are looked up.
        losses: What sharing costs, by mode, in place of what the catalogue has.
        gpus_per_node: GPUs of one node.
        most_nodes: Partial plans that the search for a proof may look at.

    Raises:
        InputError: A device is unknown, a number cannot be, or nothing serves a workload.
    """
    parts = list({part.name: part for part in map(catalogue.device, devices)}.values())
    _check(headroom, gpus_per_node, losses or {})
    lost = {mode: one.share for mode, one in sharing_losses().items()} | dict(losses or {})
    kinds = [kind for part in parts for kind in slot_kinds(part, allow, lost)]
    options = [part_choices(one, kinds, headroom=headroom) for one in workloads]
    given = {catalogue.device(name).name: price for name, price in (prices or {}).items()}
    known = {
        part.name: given.get(part.name, catalogue.typical_usd_per_device_hour(part.name))
        for part in parts
    }
    by_cost = all(price is not None for price in known.values())
    if not by_cost and len(parts) > 1:
        missing = next(name for name, price in known.items() if price is None)
        raise InputError(
            f"--device {missing}: no price on record, so that several devices cannot be compared;"
            f" give --price {missing}=USD"
        )
    assigner = PartAssigner(options, {name: price or 1.0 for name, price in known.items()})
    found = assigner.assign(most_nodes)
    names = [one.name for one in workloads]
    gpus = dealt(names, found.chosen, assigner)
    nodes, node_of = node_kinds(gpus, gpus_per_node)
    used = [mode for mode in MODES if any(gpu.mode == mode for gpu in gpus)]
    return SharePlan(
        gpus=as_records(gpus, node_of),
        workloads=[
            _shared(one, choice) for one, choice in zip(workloads, found.chosen, strict=True)
        ],
        nodes=nodes,
        num_gpus=len(gpus),
        usd_per_hour=found.cost if by_cost else None,
        objective="cost" if by_cost else "gpus",
        value=found.cost,
        at_least=found.at_least,
        proved=found.exhausted or found.at_least >= found.cost - 1e-9,
        whole_gpus=_whole(options),
        caveats={mode: CAVEATS[mode] for mode in used},
        notes=_notes(workloads, found.chosen, lost, allow, parts_of=kinds),
    )


def _check(headroom: float, gpus_per_node: int, losses: Mapping[str, float]) -> None:
    if not 0.0 <= headroom < 1.0:
        raise InputError(f"--headroom is {headroom:g}; give 0 to below 1")
    if not 1 <= gpus_per_node <= 72:
        raise InputError(f"--gpus-per-node is {gpus_per_node}; give 1 to 72")
    for mode, share in losses.items():
        if not 0.0 <= share < 1.0:
            raise InputError(f"--{mode}-loss is {share:g}; give 0 to below 1")


def _shared(one: ServedWorkload, choice: PartChoice) -> SharedWorkload:
    kind = choice.kind
    return SharedWorkload(
        workload=one.name,
        device=kind.device.name,
        mode=kind.mode,
        part=kind.name,
        replicas=choice.replicas,
        gpus_per_replica=one.gpus,
        part_memory_bytes=kind.memory_bytes,
        thread_percentage=100.0 / kind.sharers if kind.mode == "mps" else None,
        load=choice.used_share,
        resource=resource_of(kind.mode, kind.name),
        isolation=GIVES[kind.mode],
        basis="predicted" if one.predicted else "measured",
    )


def resource_of(mode: Mode, part: str) -> str:
    """What a pod asks for: MIG instances by profile, shared GPUs under a name of their own.

    >>> resource_of("mig", "3g.40gb"), resource_of("mps", "1/4"), resource_of("whole", "1")
    ('nvidia.com/mig-3g.40gb', 'nvidia.com/gpu.shared', 'nvidia.com/gpu')
    """
    if mode == "mig":
        return f"nvidia.com/mig-{part}"
    return "nvidia.com/gpu" if mode == "whole" else "nvidia.com/gpu.shared"


def _whole(options: Sequence[Sequence[PartChoice]]) -> int | None:
    """GPUs without any sharing, each workload on the device where it takes fewest."""
    total = 0
    for row in options:
        counts = [one.count for one in row if one.kind.mode == "whole"]
        if not counts:
            return None
        total += min(counts)
    return total


def _notes(
    workloads: Sequence[ServedWorkload],
    chosen: Sequence[PartChoice],
    losses: Mapping[str, float],
    allow: Collection[Mode],
    *,
    parts_of: Sequence[SlotKind],
) -> list[str]:
    named = {kind.device.name: kind.device for kind in parts_of}
    notes = [f"{part.name}: assumed: {said}" for part in named.values() for said in part.assumed]
    for mode in ("mps", "time-slicing"):
        if any(one.kind.mode == mode for one in chosen):
            source = sharing_losses()[mode].source
            why = "" if source != "ours" else ", an assumption: measure yours"
            notes.append(f"{mode} is taken to cost {losses[mode]:.1%} of a GPU's throughput{why}")
    if any(one.kind.mode == "mig" and not one.kind.listed for one in chosen):
        notes.append(
            "memory and SMs of these MIG instances were not found listed: they are taken as the"
            " least part of a slice that listed ones have"
        )
    predicted = [one.name for one in workloads if one.predicted]
    if predicted:
        notes.append(
            f"the loads of {', '.join(predicted)} are predicted from runs on whole GPUs; no run on"
            " a part of one is in the fit"
        )
    for one, choice in zip(workloads, chosen, strict=True):
        unsure = in_doubt(one, choice.kind.device) if one.predicted else []
        if unsure:
            notes.append(
                f"the load of {one.name} is extrapolated, so measure it: {'; '.join(unsure)}"
            )
    without = {kind.device.name for kind in parts_of if mig_geometry(kind.device) is None}
    if "mig" in allow and without:
        notes.append(
            f"{', '.join(sorted(without))}: no MIG, or its profiles are not on record; known are"
            f" those of {', '.join(mig_devices())}"
        )
    return notes
