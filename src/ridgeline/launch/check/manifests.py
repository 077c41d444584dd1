"""The verdict on each object: what the API server would say, and what it would not say.

Of a kind that nobody described (MPIJob, LeaderWorkerSet, a team's own) only the metadata is known.
But whatever makes pods holds their templates, and a template is recognised by its shape; the pods
are judged as those of a known custom resource are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ridgeline.errors import InputError
from ridgeline.launch.check import devices, grammar, services, workloads
from ridgeline.launch.check.catalogue import (
    NONE_GIVEN,
    Given,
    ManifestKind,
    find_kind,
    other_versions,
    served_versions,
)
from ridgeline.launch.check.decode import UNKNOWN_FIELD, decode_problems, metadata_problems
from ridgeline.launch.check.definitions import kinds_defined_by
from ridgeline.launch.check.documents import Document, read_files
from ridgeline.launch.check.fields import Fields, NameRule, Object
from ridgeline.launch.check.metadata import check_metadata
from ridgeline.launch.check.stricter import stricter_problems
from ridgeline.launch.check.stricter.workload import PodSet, read_workload
from ridgeline.launch.check.structural import schema_problems
from ridgeline.launch.check.verdict import (
    SERVER,
    ManifestProblem,
    ManifestReport,
    ManifestVerdict,
    Problems,
)

NAME_RULES: Mapping[str, NameRule] = {
    "StatefulSet": grammar.dns_label,
    "Service": grammar.dns_label,
    "Namespace": grammar.dns_label,
    "Role": grammar.path_segment,
    "RoleBinding": grammar.path_segment,
}
"""Kinds whose names are not RFC 1123 subdomains."""

CHECKS: Mapping[str, Callable[[Fields], None]] = {
    "Pod": workloads.check_pod,
    "PodTemplate": workloads.check_pod_template,
    "Job": workloads.check_job,
    "CronJob": workloads.check_cron_job,
    "Deployment": workloads.check_replicated("Deployment"),
    "StatefulSet": workloads.check_replicated("StatefulSet"),
    "DaemonSet": workloads.check_replicated("DaemonSet"),
    "Service": services.check_service,
    "PersistentVolumeClaim": services.check_volume_claim,
    "ConfigMap": services.check_config_map,
    "Secret": services.check_secret,
    "Role": services.check_role,
    "RoleBinding": services.check_role_binding,
    "HorizontalPodAutoscaler": services.check_autoscaler,
    "PodDisruptionBudget": services.check_disruption_budget,
    "NetworkPolicy": services.check_network_policy,
    "PriorityClass": services.check_priority_class,
    "ResourceQuota": services.check_quota,
    "LimitRange": services.check_limit_range,
    "ResourceClaim": devices.check_claim,
    "ResourceClaimTemplate": devices.check_claim_template,
    "DeviceClass": devices.check_device_class,
    "Workload": devices.check_workload,
    "PodGroup": devices.check_pod_group,
}

_PARTNERS = ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
_DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
_UNREADABLE = frozenset({"TypeInvalid", UNKNOWN_FIELD})


def check_files(paths: list[Path]) -> ManifestReport:
    """Verdicts on every object of some files. No cluster is asked.

    Raises:
        InputError: A file cannot be read, or nothing in them can be judged.
    """
    documents = read_files(paths)
    verdicts = tuple(check_manifests(documents))
    if not verdicts:
        raise InputError(
            f"{documents[0].source}: holds definitions of kinds alone; give objects of them too"
        )
    if not any(verdict.known or verdict.pods for verdict in verdicts):
        kinds = ", ".join(sorted({verdict.kind for verdict in verdicts}))
        raise InputError(
            f"{verdicts[0].source}: nothing was checked: no schema of {kinds} is here; "
            f"{_what_helps(verdicts[0].kind)}"
        )
    return ManifestReport(passed=all(verdict.runs for verdict in verdicts), verdicts=verdicts)


def _what_helps(kind: str) -> str:
    """What to do about a kind, as `apiVersion/kind`, of which there is no schema."""
    api_version, _, name = kind.rpartition("/")
    if name == "Kustomization":
        return "give what it makes: kubectl kustomize FOLDER | ridgeline launch --check -"
    others = other_versions(api_version, name)
    if others:
        return (
            f"write it as {others[-1]}, or give your cluster's definition: kubectl get crd -o yaml"
        )
    return "give your cluster's definitions beside it: kubectl get crd -o yaml > crds.yaml"


def check_manifests(documents: Iterable[Document]) -> list[ManifestVerdict]:
    """Verdicts on objects, in their order; a TrainJob and its runtime are seen together.

    A CustomResourceDefinition among them gets no verdict: the others are judged by it.
    """
    listed = list(documents)
    objects = [one for one in listed if _kind_of(one) != _DEFINITION]
    given = {
        (kind.api_version, kind.name): kind
        for one in listed
        if _kind_of(one) == _DEFINITION
        for kind in kinds_defined_by(one.manifest, one.source)
    }
    partners = [one.manifest for one in objects if _may_be_partner(one.manifest, given)]
    return [_verdict(document, partners, given) for document in objects]


def _kind_of(document: Document) -> tuple[object, object]:
    manifest = document.manifest if isinstance(document.manifest, Mapping) else {}
    return manifest.get("apiVersion"), manifest.get("kind")


def _may_be_partner(manifest: Any, given: Given = NONE_GIVEN) -> bool:
    """A readable TrainJob or training runtime."""
    if not isinstance(manifest, Mapping) or manifest.get("kind") not in _PARTNERS:
        return False
    kind = find_kind(str(manifest.get("apiVersion")), str(manifest["kind"]), given)
    return kind is not None and not server_problems(manifest, kind)


def _verdict(
    document: Document, partners: Sequence[Mapping[str, Any]], given: Given
) -> ManifestVerdict:
    manifest = document.manifest if isinstance(document.manifest, Mapping) else {}
    api_version, kind_name = manifest.get("apiVersion"), manifest.get("kind")
    missing = [key for key in ("apiVersion", "kind") if not isinstance(manifest.get(key), str)]
    name = ""
    if isinstance(manifest.get("metadata"), Mapping):
        name = str(manifest["metadata"].get("name") or manifest["metadata"].get("generateName", ""))
    kind = None if missing else find_kind(str(api_version), str(kind_name), given)
    pods, problems = 0, _missing_problems(missing)
    served = None if missing else served_versions(str(api_version), str(kind_name), given)
    if served is not None:
        problems = _not_served(f"{api_version}/{kind_name}", served)
    elif kind is not None:
        problems = _problems(manifest, kind, partners)
    elif not missing:
        pods, problems = pods_inside(manifest)
    return ManifestVerdict(
        source=document.source,
        kind=f"{api_version}/{kind_name}",
        name=name,
        known=kind is not None or served is not None or bool(missing),
        pods=pods,
        accepted=not any(problem.rule == SERVER for problem in problems),
        runs=not any(problem.severity == "error" for problem in problems),
        problems=problems,
    )


def _missing_problems(missing: Iterable[str]) -> tuple[ManifestProblem, ...]:
    found = Problems()
    for key in missing:
        found.required(key, "every object names its kind")
    return tuple(found.found)


def _not_served(kind: str, served: Sequence[str]) -> tuple[ManifestProblem, ...]:
    """What a server says of a version that its definition of the kind does not serve."""
    found = Problems()
    version, _, name = kind.rpartition("/")
    cure = f"write it as {served[0]}" if served else "let the definition serve a version"
    message = f"the cluster's definition of {name} does not serve {version}"
    found.add("apiVersion", "NotFound", message, cure)
    return tuple(found.found)


def _problems(
    manifest: Mapping[str, Any], kind: ManifestKind, partners: Sequence[Mapping[str, Any]]
) -> tuple[ManifestProblem, ...]:
    """What the server says about an object of a known kind, and what it does not say."""
    problems = server_problems(manifest, kind)
    # Rules about pods need fields of the right types.
    if any(problem.reason in _UNREADABLE for problem in problems):
        return problems
    return problems + stricter_problems(manifest, custom=kind.custom, among=partners)


def server_problems(manifest: Mapping[str, Any], kind: ManifestKind) -> tuple[ManifestProblem, ...]:
    """What the API server would reject in an object of a known kind, in its order of steps."""
    if not kind.custom:
        decoded = decode_problems(manifest, kind.schema)
        if any(problem.reason != UNKNOWN_FIELD for problem in decoded.found):
            return tuple(decoded.found)
        # The server stops at unknown fields; one run that names the rest too saves a second.
        return (*decoded.found, *code_problems(manifest, kind).found)
    metadata = metadata_problems(manifest)
    if metadata.found:
        return tuple(metadata.found)
    by_schema, by_code = schema_problems(manifest, kind.schema), code_problems(manifest, kind)
    if any(problem.reason == UNKNOWN_FIELD for problem in by_schema.found):
        return (*by_schema.found, *by_code.found)
    return (*by_code.found, *by_schema.found)


def code_problems(manifest: Object, kind: ManifestKind) -> Problems:
    """What the server's own code says once an object has been decoded."""
    problems = Problems()
    rule = (
        grammar.dns_subdomain if kind.custom else NAME_RULES.get(kind.name, grammar.dns_subdomain)
    )
    fields = Fields(manifest, "", problems)
    check_metadata(fields.section("metadata"), rule)
    if not kind.custom and kind.name in CHECKS:
        CHECKS[kind.name](fields)
    return problems


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
