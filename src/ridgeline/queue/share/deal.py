"""Who gets which part of which GPU, and which nodes the GPUs stand in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ridgeline.hardware.mig import mig_geometry
from ridgeline.queue.share.assign import PartAssigner
from ridgeline.queue.share.capacity import PartChoice
from ridgeline.queue.share.slots import Mode, SlotKind
from ridgeline.records.queue_sharing import NodeKind, SharedGpu, SharedPart

SHARE_LABEL = "ridgeline/share"
"""The label by which pods find nodes that share GPUs as they want them shared."""


class CutGpu:
    """A GPU whose parts are handed out."""

    def __init__(self, device: str, mode: Mode, parts: Sequence[str]) -> None:
        self.device = device
        self.mode: Mode = mode
        self.parts = list(parts)
        self.owners = [""] * len(self.parts)

    def free_place(self, part: str) -> int | None:
        """The first free part of a kind."""
        for place, (kind, owner) in enumerate(zip(self.parts, self.owners, strict=True)):
            if kind == part and not owner:
                return place
        return None

    @property
    def cut(self) -> str:
        """What it is cut into, from the largest part on.

        >>> CutGpu("H100", "mig", ["3g.40gb", "1g.10gb", "1g.10gb"]).cut
        '1x3g.40gb+2x1g.10gb'
        """
        return "+".join(f"{number}x{part}" for part, number in Counter(self.parts).items())


def dealt(
    names: Sequence[str], chosen: Sequence[PartChoice], assigner: PartAssigner
) -> list[CutGpu]:
    """GPUs with an owner for every part that was asked for.

    Replicas of one workload go to as many GPUs as there are, so that one GPU's end is not all
    replicas' end.
    """
    gpus = _cut(chosen, assigner)
    for name, one in sorted(
        zip(names, chosen, strict=True), key=lambda pair: (-pair[1].count, pair[0])
    ):
        fitting = [gpu for gpu in gpus if _is_for(gpu, one.kind)]
        for _ in range(one.count):
            free = [gpu for gpu in fitting if gpu.free_place(one.kind.name) is not None]
            gpu = min(free, key=lambda gpu: gpu.owners.count(name))
            place = gpu.free_place(one.kind.name)
            assert place is not None
            gpu.owners[place] = name
    return gpus


def _is_for(gpu: CutGpu, kind: SlotKind) -> bool:
    return (gpu.device, gpu.mode) == (kind.device.name, kind.mode) and kind.name in gpu.parts


def _cut(chosen: Sequence[PartChoice], assigner: PartAssigner) -> list[CutGpu]:
    """All GPUs, those of one device and mode beside each other, alike ones too."""
    found = []
    counts: Counter[tuple[str, Mode, int, str]] = Counter()
    slices: dict[str, list[int]] = {}
    for one in chosen:
        kind = one.kind
        name = kind.device.name
        if kind.mode == "mig":
            row = slices.setdefault(name, [0] * assigner.covers[name].num_profiles)
            row[kind.place] += one.count
        else:
            counts[name, kind.mode, kind.sharers, kind.name] += one.count
    devices = {one.kind.device.name: one.kind.device for one in chosen}
    for name, row in sorted(slices.items()):
        geometry = mig_geometry(devices[name])
        assert geometry is not None
        for cut in sorted(assigner.covers[name].cover(tuple(row)), reverse=True):
            parts = [
                geometry.profiles[place].name
                for place in reversed(range(len(cut)))
                for _ in range(cut[place])
            ]
            found.append(CutGpu(name, "mig", parts))
    for (name, mode, sharers, part), count in sorted(counts.items()):
        found += [CutGpu(name, mode, [part] * sharers) for _ in range(-(-count // sharers))]
    return found


def node_kinds(gpus: Sequence[CutGpu], gpus_per_node: int) -> tuple[list[NodeKind], list[str]]:
    """Nodes of GPUs of one device and way of sharing; the name of the node's kind for each GPU."""
    groups: dict[tuple[str, Mode, int], list[int]] = defaultdict(list)
    for number, gpu in enumerate(gpus):
        sharers = 0 if gpu.mode == "mig" else len(gpu.parts)
        groups[gpu.device, gpu.mode, sharers].append(number)
    kinds: dict[str, NodeKind] = {}
    names = [""] * len(gpus)
    for (device, mode, sharers), numbers in groups.items():
        alike: dict[tuple[tuple[str, int], ...], list[list[int]]] = defaultdict(list)
        for start in range(0, len(numbers), gpus_per_node):
            node = numbers[start : start + gpus_per_node]
            cuts = Counter(gpus[number].cut for number in node)
            key = tuple(sorted(cuts.items())) if mode == "mig" else (("", 0),)
            alike[key].append(node)
        for place, (cuts_of, nodes) in enumerate(alike.items(), 1):
            name = _node_name(device, mode, sharers, place if mode == "mig" else 0)
            kinds[name] = NodeKind(
                node=name, device=device, mode=mode, count=len(nodes),
                gpus=max(len(node) for node in nodes),
                labels=_labels(mode, name, _node_name(device, mode, sharers, 0)),
                cuts=dict(cuts_of) if mode == "mig" else {},
            )  # fmt: skip
            for node in nodes:
                for number in node:
                    names[number] = name
    return list(kinds.values()), names


def _node_name(device: str, mode: Mode, sharers: int, place: int) -> str:
    words = [device.lower(), mode]
    if sharers > 1:
        words.append(str(sharers))
    if place:
        words.append(str(place))
    return "-".join(words)


def _labels(mode: Mode, name: str, share: str) -> dict[str, str]:
    """What the operator and the device plug-in read, and by what pods choose nodes."""
    if mode == "mig":
        read = {"nvidia.com/mig.config": name}
    elif mode == "whole":
        read = {"nvidia.com/mig.config": "all-disabled"}
    else:
        read = {"nvidia.com/device-plugin.config": name, "nvidia.com/mig.config": "all-disabled"}
    return {**read, SHARE_LABEL: share}


def as_records(gpus: Sequence[CutGpu], nodes: Sequence[str]) -> list[SharedGpu]:
    """The GPUs as they are written down."""
    return [
        SharedGpu(
            number=number, device=gpu.device, mode=gpu.mode, node=node,
            parts=[SharedPart(part=part, workload=owner)
                   for part, owner in zip(gpu.parts, gpu.owners, strict=True)],
        )
        for number, (gpu, node) in enumerate(zip(gpus, nodes, strict=True), 1)
    ]  # fmt: skip
