"""Whether a job outlives a lost pod: checkpoints, restarts, shared memory, time limits.

Sources: kubeflow/trainer #2000 (NCCL timeouts differ per worker, OnFailure never converges),
#1638 (one lost pod), #2185 (a hung GPU); PyTorch's data loader and NCCL use /dev/shm, which a
container has 64 MiB of unless a volume is mounted there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ridgeline.launch.check.fields import entries, section
from ridgeline.launch.check.stricter.workload import (
    BATCH_KINDS,
    TORCH,
    BrokenRule,
    PodSet,
    PodWorkload,
    devices_of,
)

_DURABLE = frozenset(
    {
        "persistentVolumeClaim",
        "ephemeral",
        "nfs",
        "csi",
        "hostPath",
        "iscsi",
        "cephfs",
        "glusterfs",
        "fc",
        "rbd",
        "azureFile",
        "flexVolume",
    },
)
_BUCKET = re.compile(r"(s3|gs|gcs|abfss?|oss|hdfs)://|checkpoint[-_]?(bucket|uri|path)", re.I)
_TIMEOUTS = re.compile(r"^(TORCH_)?NCCL_.*TIMEOUT|^TORCH_NCCL_HEARTBEAT|^(NCCL|GLOO)_TIMEOUT")
_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[= ](\d+)")
# A mount inside the pod, no temporary file of ours.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_MPI_LAUNCHER = re.compile(r"\b(mpirun|mpiexec|horovodrun)\b")
_ENDLESS = 1000
"""More restarts than this and a job that always fails holds its GPUs for days."""


def _no_shared_memory(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.device_pods:
        in_memory = {
            volume.get("name")
            for volume in entries(pod.spec, "volumes")
            if section(volume, "emptyDir").get("medium") == "Memory" or volume.get("hostPath")
        }
        for path, container in pod.containers:
            if devices_of(section(container, "resources")) < 2 or not TORCH.search(pod.text):
                continue
            mounts = [
                (index, mount)
                for index, mount in enumerate(entries(container, "volumeMounts"))
                if (mount.get("mountPath") or "").rstrip("/") == _SHARED_MEMORY
            ]
            if not mounts and not pod.spec.get("hostIPC"):
                yield BrokenRule(
                    f"{path}.volumeMounts",
                    "several GPUs and 64 MiB of /dev/shm: NCCL or the data loader ends with "
                    "'Bus error'",
                    "mount an emptyDir with medium: Memory at /dev/shm",
                )
            for index, mount in mounts:
                if mount.get("name") not in in_memory:
                    yield BrokenRule(
                        f"{path}.volumeMounts[{index}]",
                        f"{_SHARED_MEMORY} is on disk",
                        "give its volume emptyDir.medium: Memory",
                    )


def _no_checkpoint_volume(workload: PodWorkload) -> Iterator[BrokenRule]:
    if not workload.is_training:
        return
    for pod in workload.device_pods:
        sources = {key for volume in entries(pod.spec, "volumes") for key in volume}
        claimed = any(holder.get("volumeClaimPolicies") for _, holder in pod.holders)
        spec = section(workload.manifest, "spec")
        if sources & _DURABLE or claimed or spec.get("volumes") or _BUCKET.search(pod.text):
            continue
        if TORCH.search(pod.text):
            yield BrokenRule(
                f"{pod.path}.volumes",
                "nothing that outlives the pod: a restart begins at step 0",
                "mount a persistentVolumeClaim for checkpoints",
            )


def _restarts_alone(workload: PodWorkload) -> Iterator[BrokenRule]:
    """Pods that restart one at a time while the others wait in a collective."""
    for pod in workload.device_pods if workload.kind in BATCH_KINDS else ():
        alone = pod.spec.get("restartPolicy") == "OnFailure"
        elastic = re.search(r"--max[-_]restarts|rdzv", pod.text)
        if alone and pod.count > 1 and TORCH.search(pod.text) and not elastic:
            yield BrokenRule(
                f"{pod.path}.restartPolicy",
                "one worker restarts alone while the others wait in a collective: it never "
                "converges",
                "use Never and let the job restart all pods, or run under torchrun --max-restarts",
            )


def _endless(workload: PodWorkload) -> Iterator[BrokenRule]:
    if not workload.device_pods:
        return
    holders = {path: holder for pod in workload.device_pods for path, holder in pod.holders}
    for path, holder in holders.items():
        limits = [(f"{path}.backoffLimit", holder.get("backoffLimit"))]
        limits.append((f"{path}.maxRetry", holder.get("maxRetry")))
        failure = holder.get("failurePolicy")
        if isinstance(failure, dict):
            limits.append((f"{path}.failurePolicy.maxRestarts", failure.get("maxRestarts")))
        for field, value in limits:
            if isinstance(value, int) and value > _ENDLESS:
                yield BrokenRule(
                    field.lstrip("."),
                    f"{value} restarts: a job that always fails holds its GPUs for days",
                    "bound it to what real failures need, for example 10",
                )


def _no_restart(workload: PodWorkload) -> Iterator[BrokenRule]:
    """In a JobSet one failed pod fails its Job, and without maxRestarts the whole set."""
    if workload.kind != "JobSet" or workload.num_device_pods < 2:
        return
    policy = section(section(workload.manifest, "spec"), "failurePolicy")
    if policy.get("maxRestarts"):
        return
    for pod in workload.device_pods:
        holder = next((h for p, h in reversed(pod.holders) if "backoffLimit" in h), {})
        if holder.get("backoffLimit") == 0:
            yield BrokenRule(
                "spec.failurePolicy.maxRestarts",
                f"one lost pod of {workload.num_device_pods} ends the job for good",
                "set spec.failurePolicy.maxRestarts",
            )
            return


def _timeouts(workload: PodWorkload) -> Iterator[BrokenRule]:
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for pod in workload.device_pods:
        given = {}
        for path, container in pod.containers:
            for index, variable in enumerate(entries(container, "env")):
                if _TIMEOUTS.match(variable.get("name") or ""):
                    given[variable["name"]] = (f"{path}.env[{index}]", str(variable.get("value")))
        for name, place in given.items():
            seen[name].append(place)
    for name, places in seen.items():
        for path, value in places[1:]:
            if value != places[0][1]:
                yield BrokenRule(
                    path,
                    f"{name} is {value} here and {places[0][1]} in {places[0][0]}",
                    "give all workers the same timeout",
                )
        if len(places) < len(workload.device_pods):
            yield BrokenRule(
                places[0][0],
                f"{name} is set for some workers only",
                "set it in every template that takes part",
            )


def _processes(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.device_pods:
        for path, container in pod.containers:
            for key in ("command", "args"):
                line = " ".join(str(part) for part in container.get(key) or ())
                match = _PROCESSES.search(line)
                devices = devices_of(section(container, "resources"))
                if match and devices and int(match[1]) > devices:
                    yield BrokenRule(
                        f"{path}.{key}",
                        f"starts {match[1]} processes on {devices} GPUs: 'invalid device ordinal'",
                        f"--nproc-per-node={devices}",
                    )


def _no_grace(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.device_pods if workload.is_training else ():
        if pod.spec.get("terminationGracePeriodSeconds") == 0:
            yield BrokenRule(
                f"{pod.path}.terminationGracePeriodSeconds",
                "no time to save when the pod is preempted",
                "leave the time that a checkpoint takes, at least 30",
            )


def _no_gpu(workload: PodWorkload) -> Iterator[BrokenRule]:
    """A launcher of MPI hands its variables on to workers, and computes nothing."""
    for pod in workload.pods if workload.kind in BATCH_KINDS else ():
        if workload.device_pods and _MPI_LAUNCHER.search(pod.text):
            continue
        for path, container in pod.containers:
            names = {str(v.get("name")) for v in entries(container, "env")}
            wants = any(name.startswith(("NCCL_", "TORCH_NCCL_")) for name in names)
            if wants and not _device_claims(container, pod):
                yield BrokenRule(
                    f"{path}.resources.limits",
                    "sets up NCCL and asks for no GPU: it lands on any node",
                    "set limits[nvidia.com/gpu]",
                )


def _device_claims(container: object, pod: PodSet) -> bool:
    if not isinstance(container, dict):
        return False
    resources = section(container, "resources")
    return bool(devices_of(resources) or resources.get("claims") or pod.devices)


CHECKS = {
    "shared-memory": _no_shared_memory,
    "checkpoint-volume": _no_checkpoint_volume,
    "restarts-alone": _restarts_alone,
    "endless-restarts": _endless,
    "no-restart": _no_restart,
    "collective-timeouts": _timeouts,
    "processes-exceed-gpus": _processes,
    "termination-grace": _no_grace,
    "gpu-not-asked": _no_gpu,
}
