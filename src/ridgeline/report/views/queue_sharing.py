"""What `ridgeline queue share` shows: GPUs with their parts, workloads, how good the plan is."""

from __future__ import annotations

from collections import Counter

from ridgeline import quantity
from ridgeline.records.queue_sharing import SharedGpu, SharedWorkload, SharePlan
from ridgeline.report import document as doc


def queue_sharing_document(found: SharePlan, title: str) -> doc.ReportDocument:
    """The plan in few words, then every workload and every GPU."""
    blocks: list[doc.Block] = [
        doc.Lead(title, _lead(found), "GPUs shared"),
        doc.Values(_headline(found)),
        doc.Chapter("Workloads", [_workloads(found)]),
        doc.Chapter("GPUs", [_gpus(found)]),
        doc.Chapter("Nodes", [_nodes(found)]),
        doc.Chapter(
            "What it does not protect from",
            [doc.Lines([f"{mode}: {text}." for mode, text in found.caveats.items()])],
        ),
    ]
    if found.notes:
        blocks.append(doc.Lines([f"{note}." for note in found.notes], "dim"))
    return doc.ReportDocument(f"GPUs shared by {title}", blocks)


def _lead(found: SharePlan) -> str:
    devices = Counter(gpu.device for gpu in found.gpus)
    return ", ".join(f"{count} x {name}" for name, count in devices.items())


def _headline(found: SharePlan) -> list[tuple[str, doc.Words]]:
    pairs: list[tuple[str, doc.Words]] = [("GPUs", quantity.count(found.num_gpus))]
    if found.whole_gpus is not None:
        pairs.append(("without sharing", quantity.count(found.whole_gpus)))
    if found.usd_per_hour is not None:
        pairs.append(("cost per hour", f"{quantity.digits(found.usd_per_hour)} USD"))
    pairs.append(("how good", _quality(found)))
    return pairs


def _quality(found: SharePlan) -> str:
    if found.proved:
        return "no plan of this kind is better"
    unit = "USD per hour" if found.objective == "cost" else "GPUs"
    gap = found.value / found.at_least - 1.0 if found.at_least else 0.0
    least = quantity.digits(found.at_least)
    return f"at most {quantity.percent(gap)} above the best: none is below {least} {unit}"


def _workloads(found: SharePlan) -> doc.DataTable:
    columns = (
        doc.words("workload"),
        doc.words("device"),
        doc.words("part"),
        *doc.figures("replicas", "memory", "load"),
        doc.words("isolation"),
        doc.words("resource", wide=True),
        doc.words("basis", wide=True),
    )
    rows = [
        (
            one.workload,
            one.device,
            _part(one),
            quantity.count(one.replicas),
            quantity.memory(one.part_memory_bytes * one.gpus_per_replica),
            quantity.percent(one.load),
            one.isolation,
            f"{one.resource}: {one.gpus_per_replica}",
            one.basis,
        )
        for one in found.workloads
    ]
    return doc.DataTable(columns, rows)


def _part(one: SharedWorkload) -> str:
    if one.mode == "mig":
        return f"MIG {one.part}"
    if one.thread_percentage is not None:
        return f"{one.part} by MPS, {quantity.digits(one.thread_percentage)} % of threads"
    if one.mode == "whole":
        return "whole" if one.gpus_per_replica == 1 else f"{one.gpus_per_replica} whole"
    return f"{one.part} by {one.mode}"


def _gpus(found: SharePlan) -> doc.DataTable:
    columns = (doc.words("gpu", "GPU"), doc.words("device"), doc.words("mode"),
               doc.words("parts"))  # fmt: skip
    rows = [(_numbers(gpus), gpus[0].device, gpus[0].mode, _parts(gpus[0]))
            for gpus in _alike(found.gpus)]  # fmt: skip
    return doc.DataTable(columns, rows)


def _alike(gpus: list[SharedGpu]) -> list[list[SharedGpu]]:
    """Neighbours with the same parts for the same workloads, together."""
    groups: list[list[SharedGpu]] = []
    for gpu in gpus:
        if groups and (_parts(groups[-1][0]), groups[-1][0].device) == (_parts(gpu), gpu.device):
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    return groups


def _numbers(gpus: list[SharedGpu]) -> str:
    first, last = gpus[0].number, gpus[-1].number
    return f"{first}" if first == last else f"{first} to {last}"


def _parts(gpu: SharedGpu) -> str:
    held = Counter((part.part, part.workload) for part in gpu.parts)
    return ", ".join(
        f"{f'{count} x ' if count > 1 else ''}{part} {owner or '(free)'}"
        for (part, owner), count in held.items()
    )


def _nodes(found: SharePlan) -> doc.DataTable:
    columns = (doc.words("node"), *doc.figures("nodes", "GPUs used"), doc.words("labels"))
    rows = [
        (
            node.node,
            quantity.count(node.count),
            quantity.count(node.gpus),
            " ".join(f"{key}={value}" for key, value in node.labels.items()),
        )
        for node in found.nodes
    ]
    return doc.DataTable(columns, rows)
