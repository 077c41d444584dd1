"""Templates ask for GPUs in a way that no pod may: the pods never come to be."""

from __future__ import annotations

import math

from ridgeline.quantity import several
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import AskedTemplate, LiveCluster
from ridgeline.records.kube_quantity import parse_quantity
from ridgeline.records.queue_finding import QueueFinding

NOT_PLAYED = "the workload has no pods yet, and how they share nodes is not read"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of workloads whose pods the API server refuses."""
    wrong = [(one, fault) for one in state.templates if (fault := _fault(one))]
    if not wrong:
        return None
    first, fault = wrong[0]
    lost = sum(_gpus(one) for one, _ in wrong)
    return found(
        "requests-unequal-limits",
        lost_gpus=lost,
        counted="asked for by workloads of which no pod can come to be",
        confidence=0.95,
        summary=f"{first.workload} {fault}: the API server took the workload, and refuses each of"
        f" its pods; {several(len(wrong), 'such template')}",
        evidence={
            "templates": len(wrong),
            "requests": first.requests or "none",
            "limits": first.limits or "none",
            "replicas": first.replicas,
        },
        where=[one.workload for one, _ in wrong],
        filled={"resource": first.resource, "gpus": str(max(1, math.ceil(_each(first))))},
    )


def _fault(asked: AskedTemplate) -> str:
    """What is wrong; extended resources are whole numbers, with requests equal to limits."""
    if asked.limits is None:
        return f"requests {asked.requests} of {asked.resource} without a limit"
    limit = parse_quantity(asked.limits)
    if limit is None or limit.denominator != 1:
        return f"asks for {asked.limits} of {asked.resource}, which is no whole number"
    if asked.requests is not None and parse_quantity(asked.requests) != limit:
        return f"requests {asked.requests} and limits {asked.limits} of {asked.resource}"
    return ""


def _each(asked: AskedTemplate) -> float:
    amounts = [parse_quantity(one) for one in (asked.requests, asked.limits) if one is not None]
    return float(max((one for one in amounts if one is not None), default=0))


def _gpus(asked: AskedTemplate) -> float:
    return asked.replicas * _each(asked)
