"""Pods inside an object of a kind that nobody described: MPIJob, LeaderWorkerSet, a team's own.

Nothing is known of such a kind's own fields, but for its metadata. But whatever makes pods holds
their templates, and a template is recognised by its shape; the pods are judged as those of a known
custom resource are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.launch.check.decode import UNKNOWN_FIELD, decode_problems, metadata_problems
from ridgeline.launch.check.fields import Object
from ridgeline.launch.check.stricter import stricter_problems
from ridgeline.launch.check.stricter.workload import PodSet, read_workload
from ridgeline.launch.check.verdict import ManifestProblem

_POD_SPEC: Mapping[str, str] = {"$ref": "#/definitions/io.k8s.api.core.v1.PodSpec"}
_TEMPLATE = re.compile(r"(^|\.)\w*[tT]emplate\.spec$")
"""Here stands a pod's spec and nothing else; elsewhere a kind may have laid its own fields in."""


def pods_inside(manifest: Object) -> tuple[int, tuple[ManifestProblem, ...]]:
    """How many pod templates an object holds, and what keeps their pods from running."""
    pods = read_workload(manifest, custom=True).pods
    if not pods:
        return 0, ()
    wrong = (*metadata_problems(manifest).found, *(one for pod in pods for one in _unreadable(pod)))
    if wrong:
        return len(pods), wrong
    return len(pods), stricter_problems(manifest, custom=True)


def _unreadable(pod: PodSet) -> list[ManifestProblem]:
    """Fields of the wrong type; in a plain template those too that no pod has."""
    found = decode_problems(pod.spec, _POD_SPEC, pod.path).found
    plain = _TEMPLATE.search(pod.path) is not None
    return [
        replace(problem, rule="pod-refused")
        for problem in found
        if plain or problem.reason != UNKNOWN_FIELD
    ]
