"""Answers `ridgeline queue doctor`: every rule asked, the costliest finding first."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.quantity import several
from ridgeline.queue.doctor.lasting import Lasting
from ridgeline.queue.doctor.rules import doctor_rules, in_words_of
from ridgeline.queue.doctor.state import SLURM, LiveCluster, LiveNode, LivePod
from ridgeline.queue.doctor.tainted_nodes import with_taints_as_doors
from ridgeline.queue.doctor.worth import with_worth
from ridgeline.records.queue_finding import QueueDiagnosis


def diagnose_cluster(state: LiveCluster, *, source: str = "") -> QueueDiagnosis:
    """What is wrong with a cluster.

    Args:
        state: The cluster at one moment.
        source: What it was read from, for the answer.
    """
    state = with_taints_as_doors(state)
    findings = [one for rule in doctor_rules().values() if (one := rule(state)) is not None]
    findings.sort(key=lambda one: (-one.lost_gpus * one.confidence, one.cause))
    lasting = Lasting(state)
    findings = [with_worth(in_words_of(state.scheduler, one), state, lasting) for one in findings]
    waiting = state.without_node
    with_gpus = [node for node in state.nodes if node.num_gpus or node.slices]
    return QueueDiagnosis(
        source=source,
        nodes=len(with_gpus),
        gpus=sum(node.num_gpus for node in with_gpus),
        slices=_slices(with_gpus),
        allocated_gpus=sum(pod.num_gpus for pod in state.running),
        allocated_slices=_slices(state.running),
        waiting_pods=len(waiting),
        waiting_gpus=sum(pod.num_gpus for pod in waiting),
        waiting_slices=_slices(waiting),
        findings=findings,
        notes=_notes(state),
    )


def _slices(holders: Iterable[LiveNode | LivePod]) -> int:
    return sum(sum(one.slices.values()) for one in holders)


def _notes(state: LiveCluster) -> list[str]:
    notes = list(state.notes)
    if state.scheduler == SLURM:
        notes.append("a job of Slurm is told of as a pod on each of its nodes")
    if not state.used_share:
        notes.append("without --dcgm nobody can tell which allocated GPUs are idle")
    if state.num_unlisted_gpus:
        notes.append(
            f"by the nodes' own count {several(state.num_unlisted_gpus, 'GPU')} more are in use"
            " than the jobs that were given hold; they count as in use (squeue without -u shows"
            " all)"
        )
    if state.num_homeless:
        notes.append(
            f"{several(state.num_homeless, 'pod')} on nodes that were not given (gone, or selected"
            " away) are left out"
        )
    if state.now_seconds is None:
        notes.append("the state has no times: every pod that waits counts, however new it is")
    shared = [node for node in state.nodes if node.num_gpus and node.replicas > 1]
    if shared:
        counted = sum(node.num_gpus for node in shared)
        whole = sum(node.num_gpus / node.replicas for node in shared)
        notes.append(
            f"{several(len(shared), 'node')} share their GPUs (time-slicing or MPS by"
            " nvidia.com/gpu.replicas, or HAMi): what is counted there as"
            f" {several(counted, 'GPU')} is replicas of {several(whole, 'GPU')}"
        )
    cut = [node for node in state.nodes if node.num_gpus and "-MIG-" in node.model]
    if cut:
        notes.append(
            f"MIG instances count as GPUs on {several(len(cut), 'node')} (strategy single): what is"
            f" counted there as {several(sum(node.num_gpus for node in cut), 'GPU')} is instances,"
            f" as of {cut[0].model}"
        )
    if state.num_unknown_claims:
        notes.append(
            f"devices are claimed by {several(state.num_unknown_claims, 'pod')} of whose claims"
            " nothing was given; add kubectl get resourceclaims,resourceslices -A -o json"
        )
    if state.num_fractions:
        notes.append(
            f"parts of GPUs are asked for by {several(state.num_fractions, 'pod')} in an"
            " annotation: these GPUs count where the scheduler's own pods hold them, and not while"
            " such a pod waits"
        )
    if not state.templates and state.scheduler != SLURM:
        notes.append(
            "no templates of workloads were given; add kubectl get jobs,jobsets,... -o json to"
            " have requests and limits checked of what has no pods yet"
        )
    return notes
