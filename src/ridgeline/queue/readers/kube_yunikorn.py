"""YuniKorn's queues, as its ConfigMap has them, and the queue that a pod is in.

Source: YuniKorn's documentation, "Partition and Queue Configuration" and "Labels and Annotations".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.queue.doctor.state import CappedQueue
from ridgeline.queue.readers.kube_pods import is_gpu, whole
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.records.yaml_documents import parse_yaml

YUNIKORN = "yunikorn"
_CONFIG = "queues.yaml"
_QUEUE_WORDS = ("yunikorn.apache.org/queue", "queue")
"""Labels or annotations that name a pod's queue; the last one is old."""
_MOST_VALUES = 10**5


def yunikorn_queues(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CappedQueue]:
    """The queues of YuniKorn by their whole name, `root.research`, with the most of their GPUs.

    Raises:
        InputError: The configuration is no YAML, or a limit no amount.
    """
    found: dict[str, CappedQueue] = {}
    for one in objects:
        text = section(one, "data").get(_CONFIG) if one["kind"] == "ConfigMap" else None
        if not isinstance(text, str):
            continue
        for _, told in parse_yaml(text, f"{where}: {_CONFIG}", most_values=_MOST_VALUES):
            partitions = told.get("partitions") if isinstance(told, dict) else None
            for partition in mappings_in(partitions):
                found |= dict(_below(partition, "", f"{where}: {_CONFIG}"))
    return found


def yunikorn_queue_of(pod: dict[str, Any], queues: Mapping[str, CappedQueue]) -> str:
    """The queue of a pod that YuniKorn places: the one it names, or its namespace's."""
    if section(pod, "spec").get("schedulerName") != YUNIKORN:
        return ""
    about = section(pod, "metadata")
    words = {**section(about, "labels"), **section(about, "annotations")}
    named = next((str(words[name]) for name in _QUEUE_WORDS if words.get(name)), "")
    named = named or f"root.{about.get('namespace')}"
    return named if named in queues or named.startswith("root.") else f"root.{named}"


def _below(above: dict[str, Any], parent: str, where: str) -> Iterator[tuple[str, CappedQueue]]:
    for one in mappings_in(above.get("queues")):
        name = f"{parent}.{one.get('name')}" if parent else str(one.get("name"))
        amounts = section(one, "resources", "max")
        resource = next((key for key in amounts if is_gpu(key)), "")
        most = whole(amounts[resource], resource, f"{where}: {name}") if resource else -1
        yield name, CappedQueue(kind=YUNIKORN, resource=resource, most=most, parent=parent)
        yield from _below(one, name, where)
