"""Jobs out of `kubectl get pods -o json`: workloads whose pods have started and ended.

The pods of one workload of ranks are one job: submitted with its first pod, running from the start
of its last pod to the end of its last, on all of their GPUs. Other pods are jobs of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.kube_pods import live_pod, name_of
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, kube_objects
from ridgeline.queue.readers.traced_jobs import TracedJobs


def read_pods(path: Path) -> TracedJobs:
    """Jobs that pods were.

    Raises:
        InputError: The file holds no pods, or a pod asks for what is no amount.
    """
    workloads: dict[str, list[LivePod]] = defaultdict(list)
    for one in kube_objects(path):
        if one["kind"] == "Pod":
            pod = live_pod(one, f"{path}: Pod {name_of(one)}")
            workloads[pod.workload if pod.ranks else pod.name].append(pod)
    if not workloads:
        raise InputError(f"{path}: no pod in it; {KUBECTL_CURE}")
    left: Counter[str] = Counter()
    found = []
    for name, pods in workloads.items():
        asking = [pod for pod in pods if pod.num_gpus]
        if not asking:
            left["without GPUs"] += 1
            continue
        created = [at for pod in asking if (at := pod.created_seconds) is not None]
        started = [at for pod in asking if (at := pod.started_seconds) is not None]
        ended = [at for pod in asking if (at := pod.ended_seconds) is not None and pod.done]
        if not created or len(started) < len(asking) or len(ended) < len(asking):
            left["that had not ended, or do not say when"] += 1
            continue
        gpus = sum(pod.num_gpus for pod in asking)
        queue = next((pod.quota for pod in asking if pod.quota), "") or _namespace(asking[0])
        found.append((name, min(created), max(0.0, max(ended) - max(started)), gpus, queue))
    first = min((one[1] for one in found), default=0.0)
    jobs = jobs_in_order(
        names=[one[0] for one in found],
        submit_seconds=[one[1] - first for one in found],
        duration_seconds=[one[2] for one in found],
        num_gpus=[one[3] for one in found],
        queues=[one[4] for one in found],
    )
    notes = tuple(f"{count} workloads {why} were left out." for why, count in left.items())
    return TracedJobs(jobs=jobs, notes=notes)


def _namespace(pod: LivePod) -> str:
    return pod.name.partition("/")[0] if "/" in pod.name else ""
