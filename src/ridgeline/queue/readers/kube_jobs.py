"""Jobs out of `kubectl get pods -o json`: workloads whose pods have started and ended.

The pods of one workload of ranks are one job: submitted with its first pod, running from the start
of its last pod to the end of its last, on all of their GPUs. Other pods are jobs of their own; one
that asks for a MIG slice is a job of that slice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_claims import claimable
from ridgeline.queue.readers.kube_kinds import kinds_of
from ridgeline.queue.readers.kube_pods import live_pod, name_of
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, kube_objects
from ridgeline.queue.readers.traced_jobs import BadRows, EndedJob, TracedJobs, traced_jobs
from ridgeline.queue.wants import JobWants, any_of

NO_GPUS = "without GPUs that we know by name"
UNENDED = "that had not ended, or do not say when"
SEVERAL_SLICES = "of several MIG slices"
SHARED_GPUS = "of replicas of shared GPUs, which pods do not tell the size of,"


def read_pods(path: Path, *, skip_bad: bool = False) -> TracedJobs:
    """Jobs that pods were.

    Raises:
        InputError: The file holds no pods, or a pod is given twice, asks for what is no amount or
            ends before it starts and `skip_bad` does not leave it out.
    """
    workloads: dict[str, dict[str, LivePod]] = defaultdict(dict)
    bad, seen = BadRows(skip=skip_bad), set[str]()
    objects = kube_objects(path)
    claims = claimable(objects)
    for one in objects:
        if one["kind"] != "Pod":
            continue
        where = f"{path}: Pod {name_of(one)}"
        with bad.around_a_row():
            name = name_of(one)
            pod = live_pod(one, where, claims.of_pod(name))
            _check(pod, seen, where)
            seen.add(pod.name)
            workloads[pod.workload if pod.ranks else pod.name][pod.name] = pod
    if not workloads and not bad.count:
        raise InputError(f"{path}: no pod in it; {KUBECTL_CURE}")
    left: Counter[str] = Counter()
    ended = []
    for name, pods in workloads.items():
        found = _job(name, [pod for pod in pods.values() if pod.num_gpus or pod.slices])
        if isinstance(found, str):
            left[found] += 1
        else:
            ended.append(found)
    return traced_jobs(ended, left, bad, thing="workload", kinds_if_told=True)


def _check(pod: LivePod, seen: set[str], where: str) -> None:
    if pod.name in seen:
        raise InputError(f"{where} is given twice; leave one out")
    started, ended = pod.started_seconds, pod.ended_seconds
    if pod.done and started is not None and ended is not None and ended < started:
        raise InputError(f"{where} ends before it starts; its clock was wrong: leave it out")


def _job(name: str, asking: Sequence[LivePod]) -> EndedJob | str:
    """The job that pods were together, or why they are none."""
    if not asking:
        return NO_GPUS
    if any(pod.shared_gpus for pod in asking):
        return SHARED_GPUS
    slices = [one for pod in asking for one, times in pod.slices.items() for _ in range(times)]
    gpus = sum(pod.num_gpus for pod in asking)
    if slices and (gpus or len(slices) > 1):
        return SEVERAL_SLICES
    created = [at for pod in asking if (at := pod.created_seconds) is not None]
    started = [at for pod in asking if (at := pod.started_seconds) is not None]
    ended = [at for pod in asking if (at := pod.ended_seconds) is not None and pod.done]
    if not created or len(started) < len(asking) or len(ended) < len(asking):
        return UNENDED
    return EndedJob(
        name=name,
        submit_seconds=min(created),
        # A rank that failed before the last had started leaves no time in which all ran.
        duration_seconds=max(0.0, max(ended) - max(started)),
        num_gpus=gpus or 1,
        queue=next((pod.quota for pod in asking if pod.quota), "") or _namespace(asking[0]),
        wants=JobWants(
            cpus=sum(pod.cpu_milli for pod in asking) / 1000.0,
            memory_bytes=float(sum(pod.memory_bytes for pod in asking)),
            gpu_slice=slices[0] if slices else "",
            gpu_type=_kind(asking),
            pods=len(asking) if len(asking) > 1 else 0,
        ),
    )


def _kind(asking: Sequence[LivePod]) -> str:
    """The kinds of GPU that will do for all pods; empty: any, or their pods do not agree."""
    asked = [set(kinds_of(pod.constraints)) for pod in asking]
    return any_of(set.intersection(*asked))


def _namespace(pod: LivePod) -> str:
    return pod.name.partition("/")[0] if "/" in pod.name else ""
